"""Programs that use generated clients: README's half message and op by each operation, answers of both kinds.

Each says the same when it, or another, has sent the same before: the gateway's answers to what is sent again.
"""

#: what each says, the one in TypeScript excepted, which is only compiled
SAID = """\
0 0 contradiction
1 1
COMMIT COMMIT contradiction COMMIT
ok ok
HELP
"""
PYTHON = """
import sys
from client import Client
from client.api.messages import (
    end_transaction, end_transactions, send_half, send_halves, send_message, send_messages
)
from client.api.operation import get_health, get_metrics, get_readiness
from client.api.transactions import get_transaction
from client.models import Halves, HalfMessage, Op, Ops, OpState
to = Client(sys.argv[1])
half = HalfMessage("order-4711", "orders", "payments", "eyJhbW91bnQiOiA0Mn0=")
other = HalfMessage("order-4711", "orders", "payments", "")
message = HalfMessage("order-4712", "orders", "payments", "eyJhbW91bnQiOiA0Mn0=")
stored = send_half.sync(client=to, body=half)
halves = send_halves.sync(client=to, body=Halves([half, other])).results
message_stored = send_message.sync(client=to, body=message)
messages = send_messages.sync(client=to, body=Halves([message])).results
op = Op(stored.queue_id, stored.queue_offset, "order-4711", "orders", OpState.COMMIT)
undo = Op(stored.queue_id, stored.queue_offset, "order-4711", "orders", OpState.ROLLBACK)
ended = end_transaction.sync(client=to, body=op)
ops = end_transactions.sync(client=to, body=Ops([op, undo])).results
found = get_transaction.sync("order-4711", client=to, producer_group="orders")
print(stored.queue_offset, halves[0].queue_offset, halves[1].code)
print(message_stored.queue_offset, messages[0].queue_offset)
print(ended.state, ops[0].state, ops[1].code, found.state)
print(get_health.sync(client=to).status, get_readiness.sync(client=to).status)
print(get_metrics.sync(client=to).split()[1])
"""
GO = """\
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"use/client"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	to, background := must(client.NewClientWithResponses(os.Args[1])), context.Background()
	half := client.HalfMessage{
		TransactionId: "order-4711", ProducerGroup: "orders", RealTopic: "payments", Body: "eyJhbW91bnQiOiA0Mn0=",
	}
	other, message := half, half
	other.Body, message.TransactionId = "", "order-4712"
	stored := must(to.SendHalfWithResponse(background, half)).JSON200
	several := client.Halves{Messages: []client.HalfMessage{half, other}}
	halves := must(to.SendHalvesWithResponse(background, several)).JSON200.Results
	messageStored := must(to.SendMessageWithResponse(background, message)).JSON200
	several.Messages = []client.HalfMessage{message}
	messages := must(to.SendMessagesWithResponse(background, several)).JSON200.Results
	op := client.Op{
		QueueId: stored.QueueId, QueueOffset: stored.QueueOffset, TransactionId: "order-4711", ProducerGroup: "orders",
		State: client.OpStateCOMMIT,
	}
	undo := op
	undo.State = client.OpStateROLLBACK
	ended := must(to.EndTransactionWithResponse(background, op)).JSON200
	ops := must(to.EndTransactionsWithResponse(background, client.Ops{Ops: []client.Op{op, undo}})).JSON200.Results
	params := client.GetTransactionParams{ProducerGroup: "orders"}
	found := must(to.GetTransactionWithResponse(background, "order-4711", &params)).JSON200
	fmt.Println(stored.QueueOffset, must(halves[0].AsOneStored()).QueueOffset, must(halves[1].AsProblem()).Code)
	fmt.Println(messageStored.QueueOffset, must(messages[0].AsOneStored()).QueueOffset)
	fmt.Println(ended.State, must(ops[0].AsOneEnded()).State, must(ops[1].AsProblem()).Code, found.State)
	var _ int64 = found.BornTimestamp // on every machine
	health, ready := must(to.GetHealthWithResponse(background)), must(to.GetReadinessWithResponse(background))
	fmt.Println(health.JSON200.Status, ready.JSON200.Status)
	fmt.Println(strings.Fields(string(must(to.GetMetricsWithResponse(background)).Body))[1])
}
"""
JAVA = """\
import java.util.List;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.*;
import org.openapitools.client.model.*;

class Use {
  static HalfMessage message(String id, String body) {
    return new HalfMessage().transactionId(id).producerGroup("orders").realTopic("payments").body(body);
  }

  static Op op(Stored half, Op.StateEnum state) {
    return new Op().queueId(half.getQueueId()).queueOffset(half.getQueueOffset()).transactionId("order-4711")
        .producerGroup("orders").state(state);
  }

  static void say(Object... words) {
    System.out.println(String.join(" ", List.of(words).stream().map(Object::toString).toList()));
  }

  public static void main(String[] args) throws Exception {
    ApiClient to = new ApiClient();
    to.updateBaseUri(args[0]);
    MessagesApi api = new MessagesApi(to);
    OperationApi operation = new OperationApi(to);
    HalfMessage half = message("order-4711", "eyJhbW91bnQiOiA0Mn0="), other = message("order-4711", "");
    HalfMessage message = message("order-4712", "eyJhbW91bnQiOiA0Mn0=");
    Stored stored = api.sendHalf(half);
    List<StoredResult> halves = api.sendHalves(new Halves().messages(List.of(half, other))).getResults();
    Stored messageStored = api.sendMessage(message);
    List<StoredResult> messages = api.sendMessages(new Halves().messages(List.of(message))).getResults();
    Op op = op(stored, Op.StateEnum.COMMIT), undo = op(stored, Op.StateEnum.ROLLBACK);
    Ended ended = api.endTransaction(op);
    List<EndedResult> ops = api.endTransactions(new Ops().ops(List.of(op, undo))).getResults();
    Transaction found = new TransactionsApi(to).getTransaction("order-4711", "orders", null, null);
    say(stored.getQueueOffset(), halves.get(0).getOneStored().getQueueOffset(), halves.get(1).getProblem().getCode());
    say(messageStored.getQueueOffset(), messages.get(0).getOneStored().getQueueOffset());
    say(ended.getState(), ops.get(0).getOneEnded().getState(), ops.get(1).getProblem().getCode(), found.getState());
    say(operation.getHealth().getStatus(), operation.getReadiness().getStatus());
    say(operation.getMetrics().split(" ")[1]);
  }
}
"""
TYPESCRIPT = """
import type { components, operations } from "./schema";
const half: components["schemas"]["HalfMessage"] = {
  transaction_id: "order-4711", producer_group: "orders", real_topic: "payments", body: "eyJhbW91bnQiOiA0Mn0="
};
const op: components["schemas"]["Op"] = {
  queue_id: 0, queue_offset: 1, transaction_id: "order-4711", producer_group: "orders", state: "COMMIT"
};
export const sent: operations["sendHalf"]["requestBody"]["content"]["application/json"] = half;
export const ended: operations["endTransactions"]["requestBody"]["content"]["application/json"] = { ops: [op] };
"""
