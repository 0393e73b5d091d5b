import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group that accepts, releases or rejects each record, as its value says before
 * a dash, until it is killed.
 *
 * <p>Arguments: bootstrap servers, group id, topic. It prints "settled", the partition and offset,
 * the value and the delivery count of each record that it settled, and "failed" and the error if
 * that is refused.
 */
public final class ShareMember {
  public static void main(String[] arguments) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("group.id", arguments[1]);
    settings.put("share.acknowledgement.mode", "explicit");
    StringDeserializer text = new StringDeserializer();
    try (KafkaShareConsumer<String, String> consumer =
        new KafkaShareConsumer<>(settings, text, text)) {
      consumer.subscribe(List.of(arguments[2]));
      while (true) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
        for (ConsumerRecord<String, String> each : records) {
          String kind = each.value().substring(0, each.value().indexOf('-'));
          consumer.acknowledge(each, AcknowledgeType.valueOf(kind.toUpperCase(Locale.ROOT)));
        }
        Map<TopicIdPartition, Optional<KafkaException>> stored = consumer.commitSync();
        stored.values().forEach(error -> error.ifPresent(e -> System.out.println("failed " + e)));
        for (ConsumerRecord<String, String> each : records) {
          System.out.printf(
              "settled %d %d %s %d%n",
              each.partition(), each.offset(), each.value(), each.deliveryCount().get());
        }
      }
    }
  }

  private ShareMember() {}
}
