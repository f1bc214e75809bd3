import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * What a producer does with Apache's client for Java: ENDPOINT SCENARIO...; the topic has the scenario's name.
 *
 * <p>Says a line once all have acted. When a line comes, and so all is decided, it says a JSON object: by scenario, what
 * the client was told.
 */
public class Scenarios {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final TransactionResolution COMMIT = TransactionResolution.COMMIT;
    private static final TransactionResolution ROLLBACK = TransactionResolution.ROLLBACK;
    private static final TransactionResolution UNKNOWN = TransactionResolution.UNKNOWN;
    /** On a busy machine the first call of a JVM takes longer than the client's three seconds. */
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final int THREADS = 8;
    private static final int EACH = 125;
    private static final int MIB4 = 4 << 20;
    /** The client writes its Settings at the start, a second later, and then every five minutes. */
    private static final long SETTINGS_WRITTEN_MS = 2000;
    private static String endpoint;

    /** Gives these answers, the last one again and again; null raises an exception. */
    private static class Answers implements TransactionChecker {
        final List<MessageView> asked = new CopyOnWriteArrayList<>();
        final CountDownLatch twice = new CountDownLatch(2);
        private final TransactionResolution[] answers;

        Answers(TransactionResolution... answers) {
            this.answers = answers;
        }

        @Override
        public synchronized TransactionResolution check(MessageView message) {
            asked.add(message);
            twice.countDown();
            TransactionResolution answer = answers[Math.min(asked.size(), answers.length) - 1];
            if (answer == null) {
                throw new IllegalStateException("raised");
            }
            return answer;
        }
    }

    private static Producer producer(TransactionChecker checker, String namespace, String... topics) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoint).enableSsl(false).setNamespace(namespace).setRequestTimeout(PATIENCE).build();
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration);
        builder = checker == null ? builder : builder.setTransactionChecker(checker);
        return (topics.length == 0 ? builder : builder.setTopics(topics)).build();
    }

    private static Producer producer(TransactionChecker checker, String topic) throws Exception {
        return topic.isEmpty() ? producer(checker, "", new String[0]) : producer(checker, "", new String[] {topic});
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static Transaction half(Producer producer, String topic, String body) throws ClientException {
        Transaction transaction = producer.beginTransaction();
        producer.send(message(topic, body).build(), transaction);
        return transaction;
    }

    private interface Act {
        void run() throws Exception;
    }

    /** "OK", or the error's class, and the code in it. */
    private static String said(Act act) {
        try {
            act.run();
            return "OK";
        } catch (Throwable error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                if (each instanceof ClientException) {
                    String code = String.valueOf(each.getMessage()).replaceFirst("(?s).*response-code=(\\d+).*", "$1");
                    return each.getClass().getSimpleName() + (code.matches("\\d+") ? " " + code : "");
                }
            }
            return error.getClass().getSimpleName();
        }
    }

    static Supplier<?> tx_commit(String topic) throws Exception {
        Producer producer = producer(new Answers(UNKNOWN), topic);
        Transaction transaction = producer.beginTransaction();
        MessageBuilder message = message(topic, "hello").setTag("tagA").setKeys("k1", "k2").addProperty("a", "b");
        SendReceipt receipt = producer.send(message.build(), transaction);
        String told = said(transaction::commit);
        return () -> Map.of("commit", told, "message id", receipt.getMessageId().toString().length());
    }

    static Supplier<?> tx_rollback(String topic) throws Exception {
        Answers checker = new Answers(COMMIT);
        String told = said(half(producer(checker, topic), topic, "half")::rollback);
        return () -> Map.of("rollback", told, "checks", checker.asked.size());
    }

    private static Supplier<?> checked(String topic, TransactionResolution... answers) throws Exception {
        Answers checker = new Answers(answers);
        Producer producer = producer(checker, topic);
        MessageBuilder message = message(topic, "half").setTag("tagA").setKeys("k1", "k2").addProperty("order", "7");
        SendReceipt receipt = producer.send(message.build(), producer.beginTransaction());
        return () -> {
            MessageView first = checker.asked.get(0);
            boolean same = checker.asked.stream().allMatch(each -> each.getMessageId().equals(receipt.getMessageId()));
            List<Object> about = List.of(
                StandardCharsets.UTF_8.decode(first.getBody()).toString(), first.getTag().orElse(""),
                first.getKeys().stream().sorted().toList(), first.getProperties().get("order"));
            return Map.of("checks", checker.asked.size(), "asked about", about, "same message id", same);
        };
    }

    static Supplier<?> tx_check_commit(String topic) throws Exception {
        return checked(topic, COMMIT);
    }

    static Supplier<?> tx_check_rollback(String topic) throws Exception {
        return checked(topic, ROLLBACK);
    }

    static Supplier<?> tx_check_unknown(String topic) throws Exception {
        return checked(topic, UNKNOWN);
    }

    static Supplier<?> tx_checker_raises(String topic) throws Exception {
        return checked(topic, (TransactionResolution) null);
    }

    static Supplier<?> tx_unknown_then_commit(String topic) throws Exception {
        return checked(topic, UNKNOWN, UNKNOWN, COMMIT);
    }

    static Supplier<?> tx_raises_then_commit(String topic) throws Exception {
        return checked(topic, null, COMMIT);
    }

    static Supplier<?> tx_two_producers(String topic) throws Exception {
        Answers mine = new Answers(COMMIT);
        Answers others = new Answers(COMMIT);
        Producer producer = producer(mine, topic);
        producer(others, topic);
        for (int number = 0; number < 10; number++) {
            half(producer, topic, "m" + number);
        }
        return () -> Map.of("checks of the sender", mine.asked.size(), "of the other one", others.asked.size());
    }

    static Supplier<?> tx_sender_is_gone(String topic) throws Exception {
        Answers others = new Answers(COMMIT);
        producer(others, topic);
        Producer producer = producer(new Answers(COMMIT), topic);
        half(producer, topic, "half");
        producer.close();
        return () -> Map.of("checks", others.asked.size());
    }

    static Supplier<?> tx_topic_not_declared(String topic) throws Exception {
        Answers checker = new Answers(COMMIT);
        half(producer(checker, ""), topic, "half");
        return () -> Map.of("checks", checker.asked.size());
    }

    static Supplier<?> tx_undeclared_after_start(String topic) throws Exception {
        Answers checker = new Answers(COMMIT);
        Producer producer = producer(checker, "another");
        Thread.sleep(SETTINGS_WRITTEN_MS);
        half(producer, topic, "half");
        return () -> Map.of("checks", checker.asked.size());
    }

    static Supplier<?> tx_no_checker(String topic) throws Exception {
        String told = said(producer(null, topic)::beginTransaction);
        return () -> Map.of("begin", told);
    }

    static Supplier<?> tx_second_end(String topic) throws Exception {
        Producer producer = producer(new Answers(UNKNOWN), topic);
        Map<String, Object> told = new TreeMap<>();
        for (String ends : List.of("commit commit", "rollback commit", "commit rollback", "rollback rollback")) {
            Transaction transaction = half(producer, topic, ends);
            List<String> each = new ArrayList<>();
            for (String end : ends.split(" ")) {
                each.add(said(end.equals("commit") ? transaction::commit : transaction::rollback));
            }
            told.put(ends, each);
        }
        return () -> told;
    }

    static Supplier<?> tx_late_commit(String topic) throws Exception {
        Answers checker = new Answers(UNKNOWN);
        Transaction transaction = half(producer(checker, topic), topic, "half");
        checker.twice.await();
        String told = said(transaction::commit);
        return () -> Map.of("commit", told);
    }

    static Supplier<?> tx_very_late_commit(String topic) throws Exception {
        Answers checker = new Answers(UNKNOWN);
        Transaction transaction = half(producer(checker, topic), topic, "half");
        return () -> Map.of("commit", said(transaction::commit), "checks", checker.asked.size());
    }

    static Supplier<?> tx_commit_and_check(String topic) throws Exception {
        List<Transaction> halves = new CopyOnWriteArrayList<>();
        List<String> told = new CopyOnWriteArrayList<>();
        Producer producer = producer(message -> {
            halves.forEach(each -> told.add(said(each::commit)));
            return COMMIT;
        }, topic);
        for (int number = 0; number < 12; number++) {
            halves.add(half(producer, topic, "m" + number));
        }
        return () -> Map.of("told", told.stream().distinct().sorted().toList());
    }

    static Supplier<?> tx_misuse(String topic) throws Exception {
        Producer producer = producer(new Answers(UNKNOWN), topic);
        Map<String, String> told = new TreeMap<>();
        told.put("commit without a message", said(producer.beginTransaction()::commit));
        Transaction transaction = half(producer, topic, "half");
        told.put("second message", said(() -> producer.send(message(topic, "x").build(), transaction)));
        transaction.commit();
        MessageBuilder delayed = message(topic, "x").setDeliveryTimestamp(System.currentTimeMillis() + 9000);
        told.put("with a delay", said(() -> producer.send(delayed.build(), producer.beginTransaction())));
        MessageBuilder grouped = message(topic, "x").setMessageGroup("g");
        told.put("with a group", said(() -> producer.send(grouped.build(), producer.beginTransaction())));
        return () -> told;
    }

    private static Map<String, String> sends(Producer producer, String topic, Map<String, Consumer<MessageBuilder>> each) {
        Map<String, String> told = new TreeMap<>();
        each.forEach((name, set) -> told.put(name, said(() -> {
            MessageBuilder message = message(topic, name);
            set.accept(message);
            producer.send(message.build());
        })));
        return told;
    }

    static Supplier<?> fields(String topic) throws Exception {
        Map<String, String> odd = new LinkedHashMap<>();
        odd.put("a", "b");
        odd.put("unicode", "grüße 你好 🙂");
        odd.put("spaces", " x ");
        odd.put("quote", "\"'\\");
        odd.put("sep", "a|b;c=d,e");
        odd.put("Key.With-odd_chars", "1");
        odd.put("ключ", "значение");
        MessageBuilder message = message(topic, "grüße 你好").setTag("tag-ü").setKeys("k1", "k 2", "ключ");
        odd.forEach(message::addProperty);
        String told = said(() -> producer(null, topic).send(message.build()));
        return () -> Map.of("send", told);
    }

    static Supplier<?> odd_properties(String topic) throws Exception {
        Map<String, Consumer<MessageBuilder>> odd = new LinkedHashMap<>();
        odd.put("newline in a value", message -> message.addProperty("k", "a\nb"));
        odd.put("tab", message -> message.addProperty("k", "a\tb"));
        odd.put("newline in a name", message -> message.addProperty("k\nx", "v"));
        odd.put("empty value", message -> message.addProperty("k", ""));
        odd.put("TAGS", message -> message.addProperty("TAGS", "v"));
        odd.put("UNIQ_KEY", message -> message.addProperty("UNIQ_KEY", "v"));
        odd.put("15 kB", message -> message.addProperty("k", "v".repeat(15_000)));
        odd.put("17 kB", message -> message.addProperty("k", "v".repeat(17_000)));
        for (int count : List.of(128, 129)) {
            odd.put(String.valueOf(count), message -> {
                for (int number = 0; number < count; number++) {
                    message.addProperty("k" + number, "v");
                }
            });
        }
        odd.put("| in the tag", message -> message.setTag("a|b"));
        odd.put("blank tag", message -> message.setTag(" "));
        Map<String, String> told = sends(producer(null, topic), topic, odd);
        return () -> told;
    }

    static Supplier<?> bodies(String topic) throws Exception {
        Map<String, Consumer<MessageBuilder>> sizes = new LinkedHashMap<>();
        for (int size : List.of(0, 1, 1024, MIB4 - 1, MIB4, MIB4 + 1)) {
            sizes.put(String.valueOf(size), message -> message.setBody(new byte[size]));
        }
        Map<String, String> told = sends(producer(null, topic), topic, sizes);
        return () -> told;
    }

    static Supplier<?> topics(String topic) throws Exception {
        Producer producer = producer(null, "");
        Map<String, String> told = new TreeMap<>();
        for (String name : List.of(topic, "a b", "a/b", "", "%odd%", "RMQ_SYS_TRANS_HALF_TOPIC")) {
            told.put(name, said(() -> producer.send(message(name, "x").build())));
        }
        told.put("start with an unknown one", said(() -> producer(null, topic + "_unknown")));
        return () -> told;
    }

    static Supplier<?> types(String topic) throws Exception {
        Producer producer = producer(new Answers(UNKNOWN), topic);
        Map<String, Consumer<MessageBuilder>> kinds = new LinkedHashMap<>();
        kinds.put("FIFO", message -> message.setMessageGroup("g"));
        kinds.put("DELAY", message -> message.setDeliveryTimestamp(System.currentTimeMillis() + 1000));
        kinds.put("NORMAL", message -> { });
        Map<String, String> told = sends(producer, topic, kinds);
        told.put("TRANSACTION", said(half(producer, topic, "TRANSACTION")::commit));
        return () -> told;
    }

    static Supplier<?> delay(String topic) throws Exception {
        long now = System.currentTimeMillis();
        Map<String, Consumer<MessageBuilder>> times = new LinkedHashMap<>();
        Map.of("due", 4L, "past", -100L, "now", 0L, "23 h", 82_800L, "25 h", 90_000L).forEach(
            (name, seconds) -> times.put(name, message -> message.setDeliveryTimestamp(now + seconds * 1000)));
        Map<String, String> told = sends(producer(null, topic), topic, times);
        return () -> told;
    }

    static Supplier<?> fifo(String topic) throws Exception {
        Producer producer = producer(null, topic);
        for (int number = 0; number < 10; number++) {
            for (String group : List.of("g1", "g2", "g3")) {
                producer.send(message(topic, group + "-" + number).setMessageGroup(group).build());
            }
        }
        return Map::of;
    }

    private interface Numbered {
        void run(int number) throws Exception;
    }

    private static Supplier<?> fromThreads(Numbered act) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Callable<String>> all = new ArrayList<>();
        for (int each = 0; each < THREADS * EACH; each++) {
            int number = each;
            all.add(() -> said(() -> act.run(number)));
        }
        List<String> told = new ArrayList<>();
        for (Future<String> each : pool.invokeAll(all)) {
            told.add(each.get());
        }
        return () -> told.stream().collect(Collectors.groupingBy(each -> each, Collectors.counting()));
    }

    static Supplier<?> threads(String topic) throws Exception {
        Producer producer = producer(null, topic);
        return fromThreads(number -> producer.send(message(topic, String.valueOf(number)).build()));
    }

    static Supplier<?> async(String topic) throws Exception {
        Producer producer = producer(null, topic);
        return fromThreads(number -> producer.sendAsync(message(topic, String.valueOf(number)).build()).get());
    }

    static Supplier<?> tx_threads(String topic) throws Exception {
        Producer producer = producer(new Answers(UNKNOWN), topic);
        return fromThreads(number -> {
            Transaction transaction = half(producer, topic, String.valueOf(number));
            if (number % 5 == 0) {
                transaction.rollback();
            } else {
                transaction.commit();
            }
        });
    }

    static Supplier<?> namespace(String topic) throws Exception {
        String told = said(() -> producer(null, "ns1", topic).send(message(topic, "ns").build()));
        return () -> Map.of("send", told);
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(each -> json(String.valueOf(each.getKey())) + ":" + json(each.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection<?> several) {
            return several.stream().map(Scenarios::json).collect(Collectors.joining(",", "[", "]"));
        }
        if (value instanceof String text) {
            return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
        }
        return String.valueOf(value);
    }

    public static void main(String[] arguments) throws Exception {
        endpoint = arguments[0];
        ExecutorService pool = Executors.newCachedThreadPool();
        Map<String, Future<Supplier<?>>> acting = new LinkedHashMap<>();
        for (String name : List.of(arguments).subList(1, arguments.length)) {
            Method scenario = Scenarios.class.getDeclaredMethod(name, String.class);
            acting.put(name, pool.submit(() -> (Supplier<?>) scenario.invoke(null, name)));
        }
        Map<String, Object> told = new LinkedHashMap<>();
        Map<String, Supplier<?>> acted = new LinkedHashMap<>();
        for (var each : acting.entrySet()) {
            try {
                acted.put(each.getKey(), each.getValue().get());
            } catch (Exception error) {
                told.put(each.getKey(), Map.of("failed", error + " " + error.getCause().getCause()));
            }
        }
        System.out.println("acted");
        System.in.read();
        acted.forEach((name, outcome) -> told.put(name, outcome.get()));
        System.out.println(json(told));
        System.exit(0);
    }
}
