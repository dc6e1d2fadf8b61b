//! `cargo xtask demo`: a month of departures through the published client, with a kill in the middle.
//!
//! One process pushes, two consume (a group each, four workers). When half of the pushes are answered and both
//! groups are under way, the node is killed and started again on the same directory and port; everybody retries.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::args::Args;
use crate::node::{self, Node, NodeOptions};
use crate::python::{self, Python};
use crate::shell::{self, Running, Scratch, must};
use crate::test::Tally;

/// How long the demo may go on without any progress.
const STALL_LIMIT: Duration = Duration::from_mins(3);
const GROUPS: [&str; 2] = ["boards", "billing"];
const ROLES: usize = 1 + GROUPS.len();

/// The command.
pub(crate) fn demo(mut args: Args) -> anyhow::Result<()> {
    let lines = args.value("--lines")?;
    args.end()?;
    let (binary, python) = (node::build()?, Python::set_up()?);
    let tally = run(&binary, &python, lines)?;
    ensure!(tally.failed == 0, "the demo found {} things wrong", tally.failed);
    Ok(())
}

/// What a process said: its number, and a line, or its end.
type Said = (usize, Option<String>);

/// Runs the first `lines` of the month, or all of it; counts what it checked.
pub(crate) fn run(binary: &Path, python: &Python, lines: Option<usize>) -> anyhow::Result<Tally> {
    let scratch = Scratch::new("demo")?;
    let (input, count) = unpack(python, scratch.path(), lines)?;
    let payload_bytes = fs::metadata(&input)?.len() - count as u64;
    // Short leases: what the kill leaves leased is redelivered soon.
    let options = NodeOptions::below(scratch.path(), binary)?;
    let mut node = Node::start(&options)?;
    configure(&options)?;
    let started = Instant::now();
    let (say, heard) = channel();
    let mut processes = Vec::new();
    for number in 0..ROLES {
        let mut command = python.command();
        command.arg(python::directory().join("demo.py"));
        match number.checked_sub(1).and_then(|group| GROUPS.get(group)) {
            None => command.args(["push", &options.url()]).arg(&input),
            Some(group) => command.args(["consume", &options.url()]).arg(&input).arg(group),
        };
        let stderr = File::create(scratch.path().join(format!("role-{number}.log")))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut process = Running::start(&mut command)?;
        listen(&mut process, number, say.clone())?;
        processes.push(process);
    }
    drop(say);
    let mut progress = Progress::default();
    progress.until(&heard, |at| at[0] >= count / 2 && at[1] > 0 && at[2] > 0)?;
    let at = progress.at;
    node.kill();
    let killed = Instant::now();
    node = Node::start(&options)?;
    println!(
        "killed at {} pushes, {} and {} deliveries; serving again after {}",
        at[0],
        at[1],
        at[2],
        shell::seconds(killed)
    );
    let ended = progress.until(&heard, |_| false);
    if let Err(reason) = ended {
        for number in 0..ROLES {
            let log = fs::read_to_string(scratch.path().join(format!("role-{number}.log")))?;
            println!("{}", shell::tail(&log, 10));
        }
        return Err(reason);
    }
    let took = started.elapsed().as_secs_f64();
    node.stop()?;
    let disk_bytes = bytes_below(&options.directory.join("qlog"))?;
    report(&progress, count, disk_bytes, payload_bytes, took)
}

/// What the processes have said so far.
#[derive(Default)]
struct Progress {
    at: [usize; ROLES],
    results: [Option<Value>; ROLES],
}

impl Progress {
    /// Listens until the condition holds or all processes have ended with their result.
    fn until(
        &mut self,
        heard: &Receiver<Said>,
        is_reached: impl Fn(&[usize; ROLES]) -> bool,
    ) -> anyhow::Result<()> {
        while !is_reached(&self.at) {
            let (number, line) = match heard.recv_timeout(STALL_LIMIT) {
                Ok(said) => said,
                Err(RecvTimeoutError::Timeout) => bail!("no progress since {:?}", self.at),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let (Some(at), Some(result)) = (self.at.get_mut(number), self.results.get_mut(number))
            else {
                continue;
            };
            match line {
                Some(line) if line.starts_with("at ") => *at = line[3..].parse()?,
                Some(line) if line.starts_with('{') => {
                    *result = Some(serde_json::from_str(&line).context(line)?);
                }
                // The client says itself when the broker is away.
                Some(_) => {}
                None => ensure!(result.is_some(), "process {number} of the demo died"),
            }
        }
        Ok(())
    }
}

fn listen(process: &mut Running, number: usize, say: Sender<Said>) -> anyhow::Result<()> {
    let stdout = process.child().stdout.take().context("no pipe")?;
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if say.send((number, Some(line))).is_err() {
                return;
            }
        }
        // Nobody listens any more when the demo has failed already.
        drop(say.send((number, None)));
    });
    Ok(())
}

/// Leases short enough that what a kill left leased comes again while we look.
fn configure(options: &NodeOptions) -> anyhow::Result<()> {
    let mut client = crate::http::Client::new(options.address, Duration::from_mins(1));
    let body = serde_json::json!({"queue": "flights", "options": {"leaseTime": 10}});
    let answer = client.post("/api/v1/configure", &body)?;
    ensure!(answer.status == 200, "configure: {} {}", answer.status, answer.json());
    Ok(())
}

/// Writes the lines to a file of their own; with their number.
fn unpack(python: &Python, place: &Path, lines: Option<usize>) -> anyhow::Result<(PathBuf, usize)> {
    let packed = shell::root().join("data").join("flights-2013-01.jsonl.xz");
    let whole = place.join("whole.jsonl");
    let mut command = python.command();
    let program = "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb'))";
    must(command.args(["-c", program]).arg(packed).arg(&whole), Duration::from_mins(1))?;
    let text = fs::read_to_string(&whole)?;
    let path = place.join("flights.jsonl");
    let mut file = File::create(&path)?;
    let mut count = 0;
    for line in text.lines().take(lines.unwrap_or(usize::MAX)) {
        writeln!(file, "{line}")?;
        count += 1;
    }
    Ok((path, count))
}

fn bytes_below(place: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

fn report(
    progress: &Progress,
    count: usize,
    disk_bytes: u64,
    payload_bytes: u64,
    took: f64,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut check = |is_right: bool| tally.add(Tally::one(is_right));
    let number =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(u64::MAX);
    let [pushed, groups @ ..] = &progress.results;
    let pushed = pushed.as_ref().context("the pusher left no result")?;
    println!(
        "messages in             {} of {count}, {} sent again, {} of those already stored",
        number(pushed, "in"),
        number(pushed, "sent again"),
        number(pushed, "absorbed")
    );
    println!(
        "duplicates refused      {} of {} pushed once more",
        number(pushed, "refused"),
        number(pushed, "repushed")
    );
    check(number(pushed, "in") == count as u64);
    check(number(pushed, "refused") == number(pushed, "repushed"));
    for (name, result) in GROUPS.iter().zip(groups) {
        let result = result.as_ref().with_context(|| format!("group {name} left no result"))?;
        println!(
            "group {name:<17} {} delivered, {} missing, {} order violations; {} redelivered that were not acked",
            number(result, "delivered"),
            number(result, "missing"),
            number(result, "wrong"),
            number(result, "again")
        );
        if number(result, "wrong") > 0 {
            println!("  {}", result.get("examples").unwrap_or(&Value::Null));
        }
        check(number(result, "missing") == 0);
        check(number(result, "wrong") == 0);
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio for a person")]
    let ratio = disk_bytes as f64 / payload_bytes as f64;
    println!(
        "disk                    {disk_bytes} bytes of queue logs, {ratio:.2} per payload byte"
    );
    println!("time                    {took:.1} s");
    Ok(tally)
}
