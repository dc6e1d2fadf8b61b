//! Everything that is done to a directory, one at a time.

use std::io;
use std::path::{Path, PathBuf};

use queen_io::{Disk, OpenMode};

use super::Directory;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One bit is another.
    Flip(PathBuf, usize, u8),
    /// A sector is zero.
    Zeroed(PathBuf, usize),
    /// A sector has the bytes of another one, of this or another file.
    Misplaced(PathBuf, usize, PathBuf, usize),
    /// The file ends earlier.
    Truncated(PathBuf, usize),
    /// The files are gone.
    Deleted(Vec<PathBuf>),
    /// The file is that of the checkpoint before.
    Old(PathBuf),
    /// A layout file says something else.
    Layout(PathBuf, &'static str),
    /// The first file, and with it its side files or not, is that of another log.
    Foreign(PathBuf, PathBuf, bool),
}

/// What stands in the table of verdicts.
pub const KINDS: [&str; 9] = [
    "bit flips",
    "sectors zeroed",
    "sectors misplaced",
    "truncations",
    "files deleted",
    "pairs deleted",
    "old versions",
    "layouts changed",
    "foreign files",
];

impl Damage {
    /// Its place in [`KINDS`].
    pub fn kind(&self) -> usize {
        match self {
            Self::Flip(..) => 0,
            Self::Zeroed(..) => 1,
            Self::Misplaced(..) => 2,
            Self::Truncated(..) => 3,
            Self::Deleted(files) if files.len() < 2 => 4,
            Self::Deleted(_) => 5,
            Self::Old(_) => 6,
            Self::Layout(..) => 7,
            Self::Foreign(..) => 8,
        }
    }

    /// The file, or the first of them.
    pub fn file(&self) -> &Path {
        match self {
            Self::Flip(path, ..)
            | Self::Zeroed(path, _)
            | Self::Misplaced(path, ..)
            | Self::Truncated(path, _)
            | Self::Old(path)
            | Self::Layout(path, _)
            | Self::Foreign(path, ..) => path,
            Self::Deleted(paths) => paths.first().map_or(Path::new(""), PathBuf::as_path),
        }
    }

    /// Does it to a disk that holds the directory.
    ///
    /// # Errors
    /// The disk's.
    pub fn apply(&self, disk: &dyn Disk, directory: &Directory) -> io::Result<()> {
        let good = |path: &Path| directory.files.get(path).map_or(&[][..], |bytes| bytes);
        let write = |path: &Path, bytes: &[u8], at: usize| {
            disk.open(path, OpenMode::Write)?.write_all_at(bytes, at as u64)
        };
        let replace =
            |path: &Path, bytes: &[u8]| disk.open(path, OpenMode::Truncate)?.write_all_at(bytes, 0);
        match self {
            Self::Flip(path, at, bit) => {
                let byte = good(path).get(*at).copied().unwrap_or_default();
                write(path, &[byte ^ 1 << bit], *at)
            }
            Self::Zeroed(path, number) => {
                write(path, &vec![0; sector(good(path), *number).len()], number * SECTOR)
            }
            Self::Misplaced(path, number, from, other) => {
                let len = sector(good(path), *number).len();
                let bytes = sector(good(from), *other);
                write(path, bytes.get(..len).unwrap_or(bytes), number * SECTOR)
            }
            Self::Truncated(path, len) => disk.open(path, OpenMode::Write)?.set_len(*len as u64),
            Self::Deleted(paths) => paths.iter().try_for_each(|path| disk.remove_file(path)),
            Self::Old(path) => match directory.old.get(path) {
                Some(bytes) => replace(path, bytes),
                None => disk.remove_file(path),
            },
            Self::Layout(path, text) => replace(path, text.as_bytes()),
            Self::Foreign(path, from, with_sides) => {
                replace(path, good(from))?;
                for side in ["qidx", "qhsh"].into_iter().filter(|_| *with_sides) {
                    replace(&path.with_extension(side), good(&from.with_extension(side)))?;
                }
                Ok(())
            }
        }
    }
}

fn sector(bytes: &[u8], number: usize) -> &[u8] {
    let from = number * SECTOR;
    bytes.get(from..bytes.len().min(from + SECTOR)).unwrap_or_default()
}

/// All damage of a directory, to the files that `takes`; pairs are of one such file and any other.
pub fn all(directory: &Directory, takes: &dyn Fn(&Path) -> bool) -> Vec<Damage> {
    let mut list = Vec::new();
    let files = || directory.files.iter().filter(|(path, _)| takes(path));
    for (path, bytes) in files() {
        let bits = (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
        list.extend(bits.map(|(at, bit)| Damage::Flip(path.clone(), at, bit)));
    }
    for (path, bytes) in files() {
        let sectors = bytes.len().div_ceil(SECTOR);
        for number in 0..sectors {
            list.push(Damage::Zeroed(path.clone(), number));
            for (from, other) in sectors_of(directory) {
                if (from, other) != (path, number) {
                    list.push(Damage::Misplaced(path.clone(), number, from.clone(), other));
                }
            }
        }
    }
    for (path, bytes) in files() {
        list.extend((0..bytes.len()).map(|len| Damage::Truncated(path.clone(), len)));
    }
    for (path, _) in files() {
        list.push(Damage::Deleted(vec![path.clone()]));
        let others = directory.files.keys().filter(|other| {
            let twice = takes(other) && *other < path;
            *other != path && !twice
        });
        list.extend(others.map(|other| Damage::Deleted(vec![path.clone(), other.clone()])));
        list.push(Damage::Old(path.clone()));
    }
    layouts(directory, takes, &mut list);
    foreign(directory, takes, &mut list);
    list
}

/// Every sector of every file.
fn sectors_of(directory: &Directory) -> impl Iterator<Item = (&PathBuf, usize)> {
    directory.files.iter().flat_map(|(path, bytes)| {
        (0..bytes.len().div_ceil(SECTOR)).map(move |number| (path, number))
    })
}

fn layouts(directory: &Directory, takes: &dyn Fn(&Path) -> bool, list: &mut Vec<Damage>) {
    let texts = [
        "",
        "0\n",
        "1\n",
        "2\n",
        "3\n",
        "64\n",
        "65\n",
        "4097\n",
        "2",
        "-1\n",
        "x\n",
        "99999999999999999999\n",
    ];
    let dir = directory.named("/LANES").next().and_then(Path::parent);
    for name in ["LANES", "SHARDS"] {
        let Some(path) = dir.map(|dir| dir.join(name)).filter(|path| takes(path)) else { continue };
        list.extend(texts.map(|text| Damage::Layout(path.clone(), text)));
    }
}

/// Each sealed file in the place of each other record file.
fn foreign(directory: &Directory, takes: &dyn Fn(&Path) -> bool, list: &mut Vec<Damage>) {
    let sealed: Vec<&Path> = directory.named(".qidx").collect();
    for from in sealed.iter().map(|path| path.with_extension("qlog")) {
        for path in directory.named(".qlog").filter(|path| *path != from && takes(path)) {
            for with_sides in [false, true] {
                list.push(Damage::Foreign(path.to_path_buf(), from.clone(), with_sides));
            }
        }
    }
}
