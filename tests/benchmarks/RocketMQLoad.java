import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * A load of RocketMQ's own client: half message, no local transaction, commit.
 *
 * <p>Arguments: ENDPOINT TOPIC BYTES, and then THREADS SECONDS ROUNDS: a line for each round, transactions, seconds, and
 * the median and 99th percentile in ms; or `half`: one is sent and left; or nothing more: it answers checks. It says
 * `ready` when it is, `asked` when it is asked.
 */
public class RocketMQLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        byte[] body = "x".repeat(Integer.parseInt(arguments[2])).getBytes(StandardCharsets.UTF_8);
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic)
            .setTransactionChecker(message -> {
                System.out.println("asked");
                return TransactionResolution.COMMIT;
            })
            .build();
        Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
        if (arguments.length < 6) {
            if (arguments.length > 3) {
                producer.send(message, producer.beginTransaction());
            }
            System.out.println("ready");
            Thread.sleep(Long.MAX_VALUE);
        }
        int threads = Integer.parseInt(arguments[3]);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (int round = 0; round < Integer.parseInt(arguments[5]); round++) {
            long begin = System.nanoTime(), end = begin + (long) (Double.parseDouble(arguments[4]) * 1e9);
            List<Callable<List<Long>>> loops = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                loops.add(() -> loop(producer, topic, body, end));
            }
            List<Long> taken = new ArrayList<>();
            for (var loop : pool.invokeAll(loops)) {
                taken.addAll(loop.get());
            }
            double seconds = (System.nanoTime() - begin) / 1e9;
            long[] sorted = taken.stream().mapToLong(Long::longValue).sorted().toArray();
            System.out.println(sorted.length + " " + seconds + " " + sorted[sorted.length / 2] / 1e6 + " "
                + sorted[(int) (sorted.length * 0.99)] / 1e6);
        }
        System.exit(0);
    }

    private static List<Long> loop(Producer producer, String topic, byte[] body, long end) throws Exception {
        List<Long> taken = new ArrayList<>();
        for (long now = System.nanoTime(); now < end || taken.isEmpty(); now = System.nanoTime()) {
            Transaction transaction = producer.beginTransaction();
            producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build(), transaction);
            transaction.commit();
            taken.add(System.nanoTime() - now);
        }
        return taken;
    }
}
