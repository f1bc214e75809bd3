import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The accounts service of examples/bank with RocketMQ's own client: debits accounts in local transactions of an SQLite
 * database, and answers checks. A process that may be killed. Of Checkback it knows an endpoint.
 *
 * <p>Arguments: DATABASE ENDPOINT TOPIC TAG PLAN. A line of PLAN: number, debtor, amount, fate and body, with tabs.
 * After a restart it continues with the transfers that it has not begun; those already begun are resolved by checks.
 */
public class Accounts {
    private static final int THREADS = 4;
    private static final long AGAIN_MS = 500;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private record Transfer(int number, int debtor, int amount, String fate, String body) {
        static Transfer of(String line) {
            String[] fields = line.split("\t");
            return new Transfer(
                Integer.parseInt(fields[0]), Integer.parseInt(fields[1]), Integer.parseInt(fields[2]), fields[3], fields[4]);
        }
    }

    private final Connection database;

    private Accounts(String file) throws SQLException {
        database = DriverManager.getConnection("jdbc:sqlite:" + file + "?busy_timeout=30000&transaction_mode=IMMEDIATE");
        update("CREATE TABLE IF NOT EXISTS mark (message_id TEXT PRIMARY KEY, committed INTEGER NOT NULL)");
        database.setAutoCommit(false);
    }

    public static void main(String[] arguments) throws Exception {
        Accounts accounts = new Accounts(arguments[0]);
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(arguments[1]).enableSsl(false).build();
        String topic = arguments[2];
        Producer producer = connected(configuration, topic, accounts);
        List<Callable<Void>> transfers = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(arguments[4]))) {
            transfers.add(() -> accounts.transfer(producer, topic, arguments[3], Transfer.of(line)));
        }
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        for (var transfer : pool.invokeAll(transfers)) {
            transfer.get();
        }
        Thread.sleep(Long.MAX_VALUE); // checks may arrive as long as anything is pending
    }

    /** The client starts only if the gateway is there. */
    private static Producer connected(ClientConfiguration configuration, String topic, Accounts accounts)
            throws InterruptedException {
        while (true) {
            try {
                return PROVIDER.newProducerBuilder()
                    .setClientConfiguration(configuration)
                    .setTopics(topic)
                    .setTransactionChecker(message -> accounts.check(message.getMessageId().toString()))
                    .build();
            } catch (ClientException | IllegalStateException away) {
                Thread.sleep(AGAIN_MS);
            }
        }
    }

    private Void transfer(Producer producer, String topic, String tag, Transfer transfer) throws Exception {
        if (!begin(transfer.number)) {
            return null;
        }
        Message message = PROVIDER.newMessageBuilder()
            .setTopic(topic)
            .setTag(tag)
            .setKeys("transfer-" + transfer.number)
            .setBody(transfer.body.getBytes(StandardCharsets.UTF_8))
            .build();
        Transaction transaction;
        SendReceipt receipt;
        while (true) {
            transaction = producer.beginTransaction();
            try {
                receipt = producer.send(message, transaction);
                break;
            } catch (ClientException away) { // it may be stored all the same: its check will find no debit
                Thread.sleep(AGAIN_MS);
            }
        }
        if (transfer.fate.equals("KILLED_BEFORE")) {
            die();
        }
        boolean debited = debit(receipt.getMessageId().toString(), transfer);
        if (transfer.fate.equals("KILLED_AFTER")) {
            die();
        }
        if (transfer.fate.equals("SILENT")) {
            return null;
        }
        try {
            if (debited) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        } catch (ClientException away) { // the check will tell
        }
        return null;
    }

    /** Records that the transfer is begun; false if it was before, by an earlier process. */
    private synchronized boolean begin(int number) throws SQLException {
        boolean first = update("INSERT OR IGNORE INTO begun (number) VALUES (?)", number) == 1;
        database.commit();
        return first;
    }

    /**
     * The local transaction: the debit and its mark. False if there is too little money, or a check came first and was
     * answered with a rollback, which holds for ever.
     */
    private synchronized boolean debit(String messageId, Transfer transfer) throws SQLException {
        if (update("INSERT OR IGNORE INTO mark VALUES (?, 1)", messageId) == 1
                && update("UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= ?",
                    transfer.amount, transfer.debtor, transfer.amount) == 1) {
            update("INSERT INTO debit VALUES (?, ?, ?)", messageId, transfer.debtor, transfer.amount);
            database.commit();
            return true;
        }
        database.rollback();
        return false;
    }

    /** Commit if the debit was made; else rollback, marked so that it cannot be made later. */
    private synchronized TransactionResolution check(String messageId) {
        try {
            update("INSERT OR IGNORE INTO mark VALUES (?, 0)", messageId);
            database.commit();
            try (PreparedStatement query = database.prepareStatement("SELECT committed FROM mark WHERE message_id = ?")) {
                query.setString(1, messageId);
                try (ResultSet found = query.executeQuery()) {
                    return found.next() && found.getBoolean(1) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
                }
            } finally {
                database.commit();
            }
        } catch (SQLException error) {
            throw new IllegalStateException(error); // the client gives no answer: Checkback asks again
        }
    }

    /** The number of rows that were changed. */
    private int update(String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = database.prepareStatement(sql)) {
            for (int place = 0; place < values.length; place++) {
                statement.setObject(place + 1, values[place]);
            }
            return statement.executeUpdate();
        }
    }

    /** As by kill -9. */
    private static void die() throws Exception {
        new ProcessBuilder("kill", "-9", String.valueOf(ProcessHandle.current().pid())).start().waitFor();
    }
}
