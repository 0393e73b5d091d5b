//! Consume, transform, produce with rdkafka, exactly once: each record of IN goes upper-cased to
//! OUT, in transactions that also commit the offsets. See ../README.md for the arguments.

use std::io::Write;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

const LIMIT: Duration = Duration::from_secs(30);
const RECORDS_PER_TRANSACTION: usize = 50;
const GATHER: Duration = Duration::from_millis(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, id, from, to, hold] = arguments.as_slice() else {
        eprintln!("usage: copy BOOTSTRAP ID IN OUT HOLD");
        std::process::exit(2);
    };
    let hold: u64 = hold.parse().expect("HOLD is a number");
    if let Err(error) = run(bootstrap, id, from, to, hold) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("standard output is open");
}

fn run(bootstrap: &str, id: &str, from: &str, to: &str, hold: u64) -> KafkaResult<()> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", id)
        .set("group.instance.id", id) // a restarted process takes its partitions over at once
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("reconnect.backoff.max.ms", "500")
        .create()?;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("transactional.id", id)
        .set("linger.ms", "1")
        .set("reconnect.backoff.max.ms", "500")
        .create()?;
    producer.init_transactions(LIMIT)?;
    say("ready");
    consumer.subscribe(&[from])?;
    for number in 1u64.. {
        copy_some(&consumer, &producer, to, number == hold)?;
        say(&format!("committed {number}"));
    }
    Ok(())
}

/// Copy up to RECORDS_PER_TRANSACTION records, at least one, in one transaction. With `hold` it
/// stays open until the process is killed.
fn copy_some(
    consumer: &BaseConsumer,
    producer: &BaseProducer,
    to: &str,
    hold: bool,
) -> KafkaResult<()> {
    let mut copied = 0;
    let mut end = None;
    while copied < RECORDS_PER_TRANSACTION && end.is_none_or(|end| Instant::now() < end) {
        let Some(message) = consumer.poll(Duration::from_millis(50)) else {
            continue;
        };
        let message = match message {
            Ok(message) => message,
            Err(KafkaError::MessageConsumptionFatal(code)) => {
                return Err(KafkaError::MessageConsumptionFatal(code))
            }
            Err(_) => continue, // reported, and tried again by librdkafka: the broker is away
        };
        if copied == 0 {
            producer.begin_transaction()?;
            end = Some(Instant::now() + GATHER);
        }
        let value = message.payload().unwrap_or_default().to_ascii_uppercase();
        let record = BaseRecord::<[u8], [u8]>::to(to)
            .partition(message.partition())
            .payload(&value);
        producer.send(record).map_err(|(error, _)| error)?;
        copied += 1;
    }
    let group = consumer.group_metadata().ok_or(KafkaError::ConsumerCommit(
        rdkafka::types::RDKafkaErrorCode::UnknownGroup,
    ))?;
    let positions = consumer.position()?;
    again(|| producer.send_offsets_to_transaction(&positions, &group, LIMIT))?;
    producer.flush(LIMIT)?;
    if hold {
        say("open");
        loop {
            consumer.poll(Duration::from_millis(100)); // it stays a member of its group
        }
    }
    again(|| producer.commit_transaction(LIMIT))
}

/// Repeat a call after errors that allow it. Other errors end the process: a new one ends the open
/// transaction and begins after the last committed one.
fn again(call: impl Fn() -> KafkaResult<()>) -> KafkaResult<()> {
    loop {
        match call() {
            Err(KafkaError::Transaction(error)) if error.is_retriable() => continue,
            done => return done,
        }
    }
}
