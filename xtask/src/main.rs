//! All automation of the workspace. One command, one file; nothing here is part of the product.
//!
//! `cargo xtask` without a command lists what there is.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this program talks to the person who called it")]

mod args;
mod bench;
mod chaos;
mod ci;
mod clients;
mod cluster;
mod decode;
mod demo;
mod fuzz;
mod http;
mod network;
mod node;
mod python;
mod readme;
mod rng;
mod schema;
mod shell;
mod sim;
mod suite;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::bail;

use crate::args::Args;

const HELP: &str = "\
cargo xtask COMMAND

  ci [--no-test]   format, lints, tidy, documents, tests; writes nothing
  fix              format and apply what clippy can apply
  tidy [--docs]    layers, dependencies, file rules; --docs also compares generated documents
  test [--slow] [--only WORD]
                   everything that can fail: workspace tests, the published client's own tests,
                   the fuzz targets, the independent decoder, a short demo; --slow adds the whole demo, chaos and
                   generated calls;
                   --only runs the parts whose name holds a word
  demo [--lines N] a month of departures through the published client, with a kill in the middle
  chaos [--kill] [--power] [--seconds N] [--seed N] [--binary PATH]
                   a real node under load, killed and power-cut at random moments; another program in its
                   place, such as one that does not sync, shows what the checks find
  chaos --nodes 3 [--power] [--only FAULT,..] [--seconds N] [--seed N] [--binary PATH]
                   three nodes in networks of their own: killed, stopped, paused, cut off, deaf, slow, replaced
  clients [--seconds N] [--every N] [--seed N]
                   two workloads through the published client while the leader of three nodes is killed every 20 s
  schema [--seconds N]
                   calls made up from the description of the API, against a real node
  crash [--long] [--seed N] [--drop-sync N|all]
                   a node on a simulated disk: every disk call of a script, everything that a power cut may leave
  age [--days N] [--seed N]
                   three months of steady traffic in simulated time: what is on disk against what must be there
  simulate [--seeds N] [--seconds N] [--seed N] [--nodes N] [--trace FILE]
                   whole clusters on one thread under faults of every class, one seed after the other
  damage [--seed N] [--every N] [--only WORD] [--one TEXT]
                   a small directory at rest: every bit, sector, length, file and old version that can be wrong
  fuzz [TARGET ...] [--seconds N] [--jobs N]
                   the targets of `fuzz/`, 15 s each, one line each; a run that breaks one says where its input is
  bench [SCENARIO ...] [--full] [--nodes 3]
                   workloads against the release build, one JSON line each, with the machine's floor beside them
  soak [--seconds N] [--seed N] [--series FILE]
                   one release node under a steady mixed load for half an hour: its memory, open files, threads and
                   disk stay flat, pushes do not wait for background work, every message is accounted for
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("xtask: {reason:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut args = Args::new(std::env::args().skip(1));
    match args.word().as_deref() {
        Some("ci") => ci::ci(args),
        Some("fix") => ci::fix(args),
        Some("tidy") => tidy::tidy(args),
        Some("test") => test::test(args),
        Some("demo") => demo::demo(args),
        Some("chaos") => chaos::chaos(args),
        Some("clients") => clients::clients(args),
        Some("schema") => schema::schema(args),
        Some("crash") => sim::run("crash", &args.rest()),
        Some("age") => sim::run("age", &args.rest()),
        Some("simulate") => sim::run("simulate", &args.rest()),
        Some("damage") => sim::run("damage", &args.rest()),
        Some("fuzz") => fuzz::fuzz(args),
        Some("bench") => bench::run(&args.rest()),
        Some("soak") => bench::soak(args.rest()),
        None | Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => bail!("no command {other:?}; `cargo xtask` lists them"),
    }
}
