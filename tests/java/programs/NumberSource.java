import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Type;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * A source for Connect that counts: task t of n writes the records (key "t", value "0"), (key "t",
 * value "1") and so on without end, and continues after the last offset that Connect stored.
 */
public final class NumberSource extends SourceConnector {
  private static final ConfigDef SETTINGS =
      new ConfigDef()
          .define("topic", Type.STRING, Importance.HIGH, "where the numbers go")
          .define("pause.ms", Type.LONG, 0L, Importance.LOW, "wait before each batch of ten");

  private Map<String, String> settings;

  @Override
  public void start(Map<String, String> values) {
    settings = values;
  }

  @Override
  public List<Map<String, String>> taskConfigs(int maxTasks) {
    return IntStream.range(0, maxTasks)
        .mapToObj(
            task -> {
              Map<String, String> one = new java.util.HashMap<>(settings);
              one.put("number", Integer.toString(task));
              return one;
            })
        .toList();
  }

  @Override
  public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> values) {
    return ExactlyOnceSupport.SUPPORTED;
  }

  @Override
  public Class<? extends Task> taskClass() {
    return NumberTask.class;
  }

  @Override
  public ConfigDef config() {
    return SETTINGS;
  }

  @Override
  public void stop() {}

  @Override
  public String version() {
    return "1";
  }

  /** One sequence of numbers. */
  public static final class NumberTask extends SourceTask {
    private static final int BATCH = 10;

    private Map<String, String> partition;
    private String topic;
    private long next;
    private long pauseMs;

    @Override
    public void start(Map<String, String> values) {
      partition = Map.of("number", values.get("number"));
      topic = values.get("topic");
      pauseMs = Long.parseLong(values.getOrDefault("pause.ms", "0"));
      Map<String, Object> stored = context.offsetStorageReader().offset(partition);
      next = stored == null ? 0 : (Long) stored.get("next");
    }

    @Override
    public List<SourceRecord> poll() throws InterruptedException {
      Thread.sleep(pauseMs);
      List<SourceRecord> batch = new ArrayList<>();
      for (int i = 0; i < BATCH; i++) {
        long value = next++;
        batch.add(
            new SourceRecord(
                partition,
                Map.of("next", next),
                topic,
                null,
                Schema.STRING_SCHEMA,
                partition.get("number"),
                Schema.STRING_SCHEMA,
                Long.toString(value)));
      }
      return batch;
    }

    @Override
    public void stop() {}

    @Override
    public String version() {
      return "1";
    }
  }
}
