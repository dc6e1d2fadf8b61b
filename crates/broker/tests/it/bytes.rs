//! The bytes that a node writes: the published record, from a push.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use queen_broker::api::{Api, PushBatch, PushItem};
use queen_broker::prepare::MintIds;
use queen_io::ManualClock;
use queen_record::ids::Uuid;

use crate::support::{Rig, T};

/// When the published message was pushed, and the entry that stored it.
const CREATED_US: i64 = 1_792_836_718_159_733;
const ENTRY: usize = 11;

struct PublishedId;

impl MintIds for PublishedId {
    fn mint(&self, count: usize) -> Vec<Uuid> {
        vec![Uuid::parse("01a16d65-4e4f-7001-bf27-b56a9334d445").unwrap(); count]
    }
}

#[tokio::test]
async fn a_node_with_its_clock_and_id_writes_the_published_record() {
    // Each of the ten entries before takes one microsecond of a clock that stands.
    let clock = Arc::new(ManualClock::new(CREATED_US - 1000));
    let rig = Rig::with(clock, Some(Arc::new(PublishedId)));
    for n in 1..ENTRY {
        rig.configure(&format!("other-{n}"), queen_model::OptionsPatch::default()).await;
    }
    rig.clock.set_us(CREATED_US);
    let item = PushItem {
        queue: "orders",
        partition: "Default",
        transaction_id: Some("order-8891"),
        payload: br#"{"orderId":8891}"#,
        producer_sub: None,
        trace_id: None,
    };
    rig.api().push(T, PushBatch::Items(&[item]), Duration::from_secs(20)).await.unwrap();
    let record = concat!(
        "6e000000da25b6dc1ed0878c0b000000000000000100000000000000000000000000000001000000",
        "75e7b953935e060000b97eb77dcc2db6dcbcff49435480b3c8",
        "2d0000000001a16d654e4f7001bf27b56a9334d4450a00",
        "6f726465722d383839317b226f726465724964223a383839317d"
    );
    // The queue id of `orders` in the default tenant names its log.
    let log = Path::new("/data/qlog/q9530493778072035634/r00000001.qlog");
    let bytes = rig.disk.contents(log).unwrap();
    let head = "514e514c4f4731000100000000000000";
    let written: String =
        bytes[..32 + 114].iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    assert_eq!(&written[64..], record);
    assert_eq!(&written[..32], head, "magic and file number");
    assert_eq!(&written[32..48], "0b00000000000000", "the file was made for this entry");
}
