import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;

/** Debezium's embedded engine: writes so many events as lines of JSON (topic, key, value, headers), and ends. */
public class Record {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[2]));
        try (PrintWriter out = new PrintWriter(arguments[1], "UTF-8")) {
            DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
                    .using(properties)
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println(message + " " + error);
                            System.exit(1);
                        }
                    })
                    .notifying(event -> {
                        StringBuilder headers = new StringBuilder();
                        for (Header<?> header : event.headers()) {
                            headers.append(headers.length() == 0 ? "" : ", ")
                                    .append("\"" + header.getKey() + "\": " + header.getValue());
                        }
                        out.println("{\"topic\": \"" + event.destination() + "\", \"key\": " + event.key()
                                + ", \"value\": " + event.value() + ", \"headers\": {" + headers + "}}");
                        out.flush();
                        left.countDown();
                    })
                    .build();
            var executor = Executors.newSingleThreadExecutor();
            executor.execute(engine);
            left.await();
            engine.close();
            executor.shutdown();
        }
        System.exit(0);
    }
}
