//! `queen backup`: everything that a running node holds, into a file, a directory or a pipe.
//!
//! What is not whole never has the name that was asked for: it is written beside, verified to its last byte while it
//! comes, synced, and renamed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use queen_archive::{
    ArchiveError, Manifest, Place, Progress, Verify, read_archive, remove_unpacked,
};
use queen_io::{Disk, RealDisk};

use super::failure::Failure;
use super::node::{Call, Connection, Node};
use super::{counted, note};
use crate::watch::{copying, watched};

/// A node with very many logs takes a while to stage them.
const STAGING_MAX: Duration = Duration::from_mins(10);

/// Where to.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen backup --to queen.tar
  queen backup --to /mnt/backups/monday
  queen backup --to - | zstd > queen.tar.zst

The node goes on meanwhile. Everything that it had answered before the command is in the backup. `queen restore` makes a
data directory of it. The token, if the node asks for one, is one of an administrator. Encrypted payloads stay encrypted:
keep the key elsewhere.")]
pub(crate) struct Args {
    /// A file, if its name ends in .tar; `-` for standard output; any other name is a directory. It must not exist, or
    /// be an empty directory.
    #[arg(long, value_name = "FILE.tar|DIR|-")]
    to: PathBuf,
    #[command(flatten)]
    connection: Connection,
}

/// Ends of names that promise a packed file.
const PACKED: [&str; 8] = ["tgz", "gz", "zst", "tzst", "xz", "bz2", "zip", "lz4"];

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let to = &*args.to;
    let node = Node::new(&args.connection)?;
    if to == Path::new("-") {
        let manifest = tee(take(&node)?, &mut io::stdout())?;
        note(&told(&manifest, to));
        return Ok(());
    }
    let is_file = to.extension().is_some_and(|extension| extension == "tar");
    if let Some(kind) = to.extension().filter(|kind| PACKED.iter().any(|packed| packed == kind)) {
        return Err(Failure::said(format!(
            "a backup is not written as .{}: pack its stream, as in `queen backup --to - | zstd > queen.tar.zst`",
            kind.display()
        )));
    }
    check_free(to, is_file)?;
    let partial = beside(to, "partial")?;
    let manifest = if is_file {
        let written = into_file(&node, &partial);
        if written.is_err() && partial.exists() {
            std::fs::remove_file(&partial).map_err(said(&partial, "cannot be removed"))?;
        }
        written?
    } else {
        remove_unpacked(&RealDisk, &partial).map_err(of_archive)?;
        let mut place = Place::new(&RealDisk, &partial).keeping_sums();
        let mut input = take(&node)?;
        let progress = Progress::new();
        watched(
            |elapsed| copying(&progress, elapsed),
            || read_archive(&mut input, &mut place, &progress),
        )
        .map_err(of_archive)?
    };
    put_in_place(&partial, to)?;
    let mut output = super::output::Output::new();
    output.line(&told(&manifest, to))?;
    output.flush()
}

fn take(node: &Node) -> Result<impl Read + Send + use<>, Failure> {
    let call = Call::bare_post(&["api", "v1", "backup"]).waiting(STAGING_MAX);
    node.stream(&call).map_err(Failure::from)
}

fn into_file(node: &Node, partial: &Path) -> Result<Manifest, Failure> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(partial);
    let mut file = file.map_err(said(partial, "cannot be made"))?;
    let manifest = tee(take(node)?, &mut file)?;
    file.sync_all().map_err(said(partial, "cannot be synced"))?;
    Ok(manifest)
}

/// Verifies what comes and writes it as it is.
fn tee(input: impl Read + Send, output: &mut (impl Write + Send)) -> Result<Manifest, Failure> {
    struct Tee<'o, R, W> {
        input: R,
        output: &'o mut W,
        /// Of the output: reading then fails too.
        failed: Option<io::Error>,
    }

    impl<R: Read, W: Write> Read for Tee<'_, R, W> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let count = self.input.read(buf)?;
            let bytes = buf.get(..count).unwrap_or_default();
            if let Err(error) = self.output.write_all(bytes) {
                self.failed = Some(error);
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(count)
        }
    }

    let progress = Progress::new();
    let mut tee = Tee { input, output, failed: None };
    let read = watched(
        |elapsed| copying(&progress, elapsed),
        || read_archive(&mut tee, &mut Verify, &progress),
    );
    let Tee { output, failed, .. } = tee;
    match failed {
        Some(error) => {
            return Err(Failure::said(format!(
                "the backup cannot be written: {error}; what was written is no backup"
            )));
        }
        None => output.flush().map_err(|error| Failure::of_output(&error))?,
    }
    read.map_err(of_archive)
}

/// Whether the name can be given.
fn check_free(to: &Path, is_file: bool) -> Result<(), Failure> {
    let taken = || {
        Failure::said(format!("{} is there already: name another, or move it away", to.display()))
    };
    match std::fs::symlink_metadata(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(said(to, "cannot be looked at")(error)),
        Ok(found) if found.is_dir() && !is_file => {
            let mut names = std::fs::read_dir(to).map_err(said(to, "cannot be listed"))?;
            if names.next().is_none() { Ok(()) } else { Err(taken()) }
        }
        Ok(_) => Err(taken()),
    }
}

/// A name beside another one: `DIR.partial` of `DIR`. What grows there gets the other name in the end, so whatever would
/// keep it from that is found here, before any work.
///
/// # Errors
/// The name cannot be given.
pub(crate) fn beside(path: &Path, end: &str) -> Result<PathBuf, Failure> {
    let shown = path.display();
    let name = path.file_name().ok_or_else(|| {
        Failure::said(format!(
            "{shown} is no name that something can be given: name it from outside"
        ))
    })?;
    let parent = parent_of(path);
    let around = match std::fs::metadata(parent) {
        Ok(found) if found.is_dir() => found,
        Ok(_) => {
            let line = format!("{} is a file: name a directory in {shown}", parent.display());
            return Err(Failure::said(line));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let line = format!("the directory {} does not exist: make it first", parent.display());
            return Err(Failure::said(line));
        }
        Err(error) => return Err(said(parent, "cannot be looked at")(error)),
    };
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if found.is_symlink() {
            let line = format!("{shown} is a symbolic link: name the directory that it leads to");
            return Err(Failure::said(line));
        }
        if found.dev() != around.dev() {
            let line =
                format!("{shown} is a mount point and keeps its place: name a directory in it");
            return Err(Failure::said(line));
        }
    }
    let mut name = name.to_os_string();
    name.push(".");
    name.push(end);
    Ok(path.with_file_name(name))
}

/// Gives what is whole and synced its name, durably.
///
/// # Errors
/// The system's.
pub(crate) fn put_in_place(from: &Path, to: &Path) -> Result<(), Failure> {
    RealDisk.rename(from, to).map_err(said(to, "cannot be given its name"))?;
    let parent = parent_of(to);
    RealDisk.sync_dir(parent).map_err(said(parent, "cannot be synced"))
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A failed call on a file as a line.
pub(crate) fn said(path: &Path, what: &str) -> impl FnOnce(io::Error) -> Failure {
    let line = format!("{} {what}", path.display());
    move |error| Failure::said(format!("{line}: {error}"))
}

/// A refused backup as a line.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
pub(crate) fn of_archive(error: ArchiveError) -> Failure {
    Failure::said(error.to_string())
}

fn told(manifest: &Manifest, to: &Path) -> String {
    let files = counted(manifest.members.len() as u64, "file");
    let (index, bytes) = (manifest.index, manifest.bytes());
    let place =
        if to == Path::new("-") { "standard output".to_owned() } else { to.display().to_string() };
    format!("everything up to entry {index}: {files}, {bytes} bytes, in {place}")
}

/// Opens a file to be read.
///
/// # Errors
/// The system's.
pub(crate) fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(said(path, "cannot be opened"))
}
