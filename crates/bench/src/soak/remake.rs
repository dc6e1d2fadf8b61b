//! A queue that is filled, read, deleted and made again, over and over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;

use crate::check::{Check, Verdict};
use crate::http::Client;
use crate::soak::load::{settle, take};
use crate::soak::{configure, delete};
use crate::wire::{self, Form, Item, Lane, Pad, Pusher, now_us};

const QUEUE: &str = "remade";
const LANES: u32 = 20;
/// Messages of a request, all of one lane.
const BATCH: u64 = 10;
/// How often each lane is pushed to in a life.
const TURNS: u64 = 3;
/// Pops in a row that may find nothing before what is left counts as missing.
const EMPTY_MAX: u32 = 20;

/// What all lives came to.
#[derive(Default)]
pub(super) struct Remade {
    pub(super) lives: u64,
    pub(super) messages: u64,
    pub(super) verdict: Verdict,
}

/// Lets the queue live again and again, each time for `life`, until it is over. Deleted with half of it read and held.
pub(super) async fn run(
    port: u16,
    life: Duration,
    pad: Arc<Pad>,
    is_over: Arc<AtomicBool>,
) -> anyhow::Result<Remade> {
    let mut client = Client::connect(port).await?;
    let mut remade = Remade::default();
    while !is_over.load(Ordering::SeqCst) {
        configure(&mut client, QUEUE, r#"{"dedupWindowSeconds":1}"#).await?;
        fill(&mut client, life, &pad, remade.lives).await?;
        let check = read(&mut client).await?;
        let found = check.verdict(&vec![TURNS * BATCH; LANES as usize]);
        remade.verdict.missing += found.missing;
        remade.verdict.duplicates += found.duplicates;
        remade.verdict.out_of_order += found.out_of_order;
        remade.messages += u64::from(LANES) * TURNS * BATCH;
        remade.lives += 1;
        delete(&mut client, QUEUE).await?;
    }
    Ok(remade)
}

async fn fill(client: &mut Client, life: Duration, pad: &Pad, number: u64) -> anyhow::Result<()> {
    // The same transaction ids in each life: a queue that was made again knows none of the ones before.
    let place = (QUEUE, Lane::Partition);
    let mut pusher = Pusher::new(place, pad, "again".to_owned(), Form::Json)?;
    let mut body = Vec::new();
    let mut ticks = tokio::time::interval(life / (LANES * TURNS as u32));
    for turn in 0..TURNS {
        for lane in 0..LANES {
            ticks.tick().await;
            let seqs = turn * BATCH..(turn + 1) * BATCH;
            let items: Vec<Item> = seqs.map(|seq| Item { lane, seq }).collect();
            pusher.body(&mut body, &items)?;
            let answer = client.post("/api/v1/push", &body).await?;
            let queued = wire::count(answer.body, b"\"status\":\"queued\"");
            ensure!(
                answer.status == 201 && queued == items.len(),
                "push in life {number} of {QUEUE} at {}: {} {}",
                now_us(),
                answer.status,
                answer.excerpt()
            );
        }
    }
    Ok(())
}

/// Reads everything; acknowledges every second answer and holds the others.
async fn read(client: &mut Client) -> anyhow::Result<Check> {
    let path = format!("/api/v1/pop/queue/{QUEUE}?wait=true&timeout=200&batch=1000&partitions=4");
    let mut check = Check::new(LANES);
    let (mut body, mut received, mut empty) = (Vec::new(), 0, 0);
    for turn in 0_u64.. {
        if received >= u64::from(LANES) * TURNS * BATCH || empty >= EMPTY_MAX {
            break;
        }
        let see = |lane, seq| check.receive(lane, seq);
        let count = take(client, &path, None, &mut body, see).await?;
        received += count as u64;
        empty = if count == 0 { empty + 1 } else { 0 };
        if count > 0 && turn.is_multiple_of(2) {
            settle(client, &body, count).await?;
        }
    }
    Ok(check)
}
