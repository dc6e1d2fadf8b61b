//! `queen restore`: a data directory made of a backup.
//!
//! It grows beside its place, is verified against the backup's sums and examined by the doctor, and only then gets its
//! name. An interrupted restore is begun again with the same command; what is there is compared and not written twice.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use queen_archive::{ArchiveError, Manifest, Place, Progress, read_archive, read_directory};
use queen_doctor::Verdict;
use queen_io::RealDisk;

use crate::client::backup::{beside, of_archive, open, put_in_place, said};
use crate::client::failure::Failure;
use crate::client::output::Output;
use crate::client::{counted, ended};
use crate::examine::doctor;
use crate::watch::{copying, watched};

/// Exit code 0: a node would start from it, and the doctor found nothing. 1: nothing was restored. 3: restored, and the
/// doctor found something that a start lives with.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen restore --from queen.tar --to /var/lib/queen/raft
  zstd -dc queen.tar.zst | queen restore --from - --to ./data

Interrupted, it goes on with the same command. Set QUEEN_ENCRYPTION_KEY as for a start, where payloads are encrypted.")]
pub(crate) struct Args {
    /// What `queen backup` made: a file, a directory, or `-` for standard input.
    #[arg(long, value_name = "FILE.tar|DIR|-")]
    from: PathBuf,
    /// The data directory: missing, or empty.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// Does it.
pub(crate) fn run(args: &Args) -> ExitCode {
    ended(restore(args))
}

fn restore(args: &Args) -> Result<ExitCode, Failure> {
    let to = &*args.to;
    let growing = beside(to, "restoring")?;
    check_empty(to)?;
    // The settings first: a wrong key costs no copy.
    let target = doctor::target(&growing)?;
    let _lock = take(&growing)?;
    let manifest = unpack(&args.from, &growing)?;
    let report = doctor::examine_watched(&target);
    let report = report.map_err(said(&growing, "cannot be examined"))?;
    let mut output = Output::new();
    if let Verdict::Refuses(text) = &report.verdict {
        let growing = growing.display();
        return Err(Failure::said(format!(
            "the backup is whole, but a node would not start from it ({text}); it is left in {growing}"
        )));
    }
    put_in_place(&growing, to)?;
    let files = counted(manifest.members.len() as u64, "file");
    let (index, bytes) = (manifest.index, manifest.bytes());
    output.line(&format!(
        "restored everything up to entry {index}: {files}, {bytes} bytes, in {}",
        to.display()
    ))?;
    doctor::print(&report, &growing, &mut output)?;
    output.flush()?;
    Ok(doctor::exit_code(&report))
}

fn unpack(from: &Path, growing: &Path) -> Result<Manifest, Failure> {
    let progress = Progress::new();
    let mut place = Place::new(&RealDisk, growing);
    let archive = match from {
        from if from == Path::new("-") => None,
        from if from.is_dir() => {
            let read = || read_directory(&RealDisk, from, &mut place, &progress);
            return watched(|elapsed| copying(&progress, elapsed), read).map_err(of_archive);
        }
        from => Some(archive_file(from)?),
    };
    let read = || -> Result<Manifest, ArchiveError> {
        match archive {
            Some(mut file) => read_archive(&mut file, &mut place, &progress),
            None => read_archive(&mut io::stdin().lock(), &mut place, &progress),
        }
    };
    watched(|elapsed| copying(&progress, elapsed), read).map_err(of_archive)
}

/// Opens the file of a backup, which is not packed.
fn archive_file(from: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::FileExt;
    let file = open(from)?;
    let mut head = [0; 4];
    let read = file.read_at(&mut head, 0).map_err(said(from, "cannot be read"))?;
    let unpack = match head.get(..read).unwrap_or_default() {
        [0x1f, 0x8b, ..] => "gzip -dc",
        [0x28, 0xb5, 0x2f, 0xfd] => "zstd -dc",
        [0xfd, b'7', b'z', b'X'] => "xz -dc",
        [b'B', b'Z', b'h', _] => "bzip2 -dc",
        _ => return Ok(file),
    };
    let from = from.display();
    Err(Failure::said(format!(
        "{from} is packed: unpack it on the way, as in `{unpack} {from} | queen restore --from - --to DIR`"
    )))
}

fn check_empty(to: &Path) -> Result<(), Failure> {
    match std::fs::read_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(said(to, "cannot be listed")(error)),
        Ok(mut names) => match names.next() {
            None => Ok(()),
            Some(_) => Err(Failure::said(format!(
                "{} is not empty: restore beside it, or move it away first",
                to.display()
            ))),
        },
    }
}

/// Takes the growing directory for this process.
fn take(growing: &Path) -> Result<File, Failure> {
    queen_io::Disk::create_dir(&RealDisk, growing).map_err(said(growing, "cannot be made"))?;
    let dir = open(growing)?;
    match dir.try_lock() {
        Ok(()) => Ok(dir),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Failure::said(format!("{} is being restored already", growing.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(said(growing, "cannot be locked")(error)),
    }
}
