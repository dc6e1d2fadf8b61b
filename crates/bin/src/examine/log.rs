//! `queen log dump FILE`: the records of one file, one line each; it stops where they stop being records.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use queen_doctor::{Described, describe_effect, describe_frame, describe_record};
use queen_io::{Disk, OpenMode, RealDisk};
use queen_qlog::walk::{FileWalk, Walked};
use queen_raft::StoredEntry;
use queen_record::compress::PayloadDecompressor;
use queen_record::frame::Frames;
use queen_record::record::{EntryBody, Record};
use queen_record::side::SideHeader;
use queen_record::{qhsh, qidx};
use serde_json::{Map, Value};

use super::lines::{line, number, object, text};
use crate::client::failure::Failure;
use crate::client::output::Output;

/// A side file that is larger is not read into memory.
const SIDE_BYTES_MAX: u64 = 1 << 30;

/// Exit code 0: the file ends with its last record, or with zeros written ahead. 1: it does not, or cannot be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file of a queue log: r00000001.qlog, or one of its side files.
    file: PathBuf,
    /// Print one JSON document per record.
    #[arg(long)]
    json: bool,
    /// Print the messages too: ids, and the beginning of payloads that are not encrypted.
    #[arg(long)]
    frames: bool,
    /// Stop after so many records.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut dump = Dump { args, output: Output::new(), left: args.limit.unwrap_or(u64::MAX) };
    let done = match args.file.extension().and_then(|ext| ext.to_str()) {
        Some("qlog") => dump.records(),
        Some("qidx") => dump.index(),
        Some("qhsh") => dump.hashes(),
        _ => Err(Failure::said(
            "name one file of a log: its name ends in .qlog, .qidx or .qhsh, as in DIR/qlog/q1/r00000001.qlog",
        )),
    };
    // What was printed before the damage belongs before the line that names it.
    dump.output.flush()?;
    done.map(|()| ExitCode::SUCCESS)
}

struct Dump<'a> {
    args: &'a Args,
    output: Output,
    /// Records that may still be printed.
    left: u64,
}

impl Dump<'_> {
    fn records(&mut self) -> Result<(), Failure> {
        let path = &*self.args.file;
        let failed = |fault: queen_qlog::Fault| Failure::said(fault.to_string());
        let walk = FileWalk::open(&RealDisk, path).map_err(failed)?;
        match walk.header() {
            Ok(header) => {
                let mut fields = vec![number("file", header.number)];
                if header.first_seq == queen_record::header::FIRST_SEQ_UNUSED {
                    fields.push(text("firstEntry", "unused"));
                } else {
                    fields.push(number("firstEntry", header.first_seq.0));
                }
                fields.push(number("bytes", walk.file_len()));
                self.print(&Described { kind: "header", fields }, Map::new(), &[])?;
            }
            Err(error) => return Err(damage(path, 0, &error.to_string())),
        }
        let mut decompressor = PayloadDecompressor::new().ok();
        let mut result = Ok(());
        walk.each(path, &mut |step| {
            let done = match step {
                Walked::Record { at, record } => self.record(at, &record, decompressor.as_mut()),
                Walked::Bad { at, reason, .. } => Err(damage(path, at, &reason)),
                Walked::End { at } => self.print(
                    &Described { kind: "end", fields: vec![number("at", at)] },
                    Map::new(),
                    &[],
                ),
            };
            let goes_on = done.is_ok() && self.left > 0;
            result = done;
            goes_on
        })
        .map_err(failed)?;
        result
    }

    fn record(
        &mut self,
        at: u64,
        record: &Record<'_>,
        decompressor: Option<&mut PayloadDecompressor>,
    ) -> Result<(), Failure> {
        self.left = self.left.saturating_sub(1);
        let path = &*self.args.file;
        let described = describe_record(at, record);
        let wrong = |error: &dyn std::fmt::Display| damage(path, at, &error.to_string());
        let Some(part) = record.entry_part() else {
            if !self.args.frames {
                return self.print(&described, Map::new(), &[]);
            }
            let raw;
            let payload = if record.head.compressed {
                let decompressor = decompressor.ok_or_else(|| wrong(&"no memory to decompress"))?;
                raw = decompressor.decompress(record.payload).map_err(|error| wrong(&error))?;
                &*raw
            } else {
                record.payload
            };
            let mut frames = Vec::new();
            for (offset, frame) in (record.head.base.0..).zip(Frames::new(payload)) {
                frames.push(describe_frame(offset, &frame.map_err(|error| wrong(&error))?));
            }
            return self.print_with(&described, "messages", &frames);
        };
        match part.body {
            EntryBody::Stub { .. } => self.print(&described, Map::new(), &[]),
            EntryBody::Whole(bytes) => {
                let effects = match StoredEntry::read(bytes).map_err(|error| wrong(&error))? {
                    StoredEntry::Planned(entry) => {
                        entry.effects.iter().map(describe_effect).collect()
                    }
                    StoredEntry::Own(what) => {
                        vec![Described { kind: "cluster", fields: vec![text("entry", what)] }]
                    }
                };
                self.print_with(&described, "effects", &effects)
            }
        }
    }

    fn print_with(
        &mut self,
        described: &Described,
        name: &str,
        inner: &[Described],
    ) -> Result<(), Failure> {
        let list = inner.iter().map(|inner| Value::Object(object(inner))).collect();
        let more = Map::from_iter([(name.to_owned(), Value::Array(list))]);
        self.print(described, more, inner)
    }

    fn print(
        &mut self,
        described: &Described,
        more: Map<String, Value>,
        inner: &[Described],
    ) -> Result<(), Failure> {
        if self.args.json {
            let mut document = object(described);
            document.extend(more);
            return self.output.json_of(&document);
        }
        self.output.line(&line(described))?;
        inner.iter().try_for_each(|inner| self.output.line(&format!("    {}", line(inner))))
    }

    fn index(&mut self) -> Result<(), Failure> {
        let bytes = read(&self.args.file)?;
        let wrong = |error| damage(&self.args.file, 0, &format!("{error}"));
        let (header, records) = qidx::decode(&bytes).map_err(wrong)?;
        self.side_header(&header)?;
        for record in records.iter().take(usize::try_from(self.left).unwrap_or(usize::MAX)) {
            let fields = vec![
                number("partition", record.partition.0),
                number("base", record.base.0),
                number("end", record.end.0),
                number("createdUs", record.created.0),
                number("at", record.at),
                number("count", record.count),
                number("length", record.len),
            ];
            self.print(&Described { kind: "record", fields }, Map::new(), &[])?;
        }
        Ok(())
    }

    fn hashes(&mut self) -> Result<(), Failure> {
        let bytes = read(&self.args.file)?;
        let wrong = |error| damage(&self.args.file, 0, &format!("{error}"));
        let (header, records) = qhsh::decode(&bytes).map_err(wrong)?;
        self.side_header(&header)?;
        for record in records.iter().take(usize::try_from(self.left).unwrap_or(usize::MAX)) {
            let hashes: Vec<String> = record.tx_hashes().map(|hash| hash.to_string()).collect();
            let fields = vec![
                number("partition", record.head.partition.0),
                number("base", record.head.base.0),
                number("createdUs", record.head.created.0),
                number("count", record.head.count),
                text("hashes", hashes.join(" ")),
            ];
            self.print(&Described { kind: "record", fields }, Map::new(), &[])?;
        }
        Ok(())
    }

    fn side_header(&mut self, header: &SideHeader) -> Result<(), Failure> {
        let fields = vec![
            number("file", header.number),
            number("records", header.records),
            number("logBytes", header.log_len),
        ];
        self.print(&Described { kind: "header", fields }, Map::new(), &[])
    }
}

fn damage(path: &Path, at: u64, reason: &str) -> Failure {
    Failure::said(format!("damage at byte {at} of {}: {reason}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = || {
        let file = RealDisk.open(path, OpenMode::Read)?;
        let len = file.len()?;
        if len > SIDE_BYTES_MAX {
            let text = format!("{len} bytes are too many to be shown");
            return Err(std::io::Error::other(text));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let count = file.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    read().map_err(|error: std::io::Error| {
        Failure::said(format!("{} cannot be read: {error}", path.display()))
    })
}
