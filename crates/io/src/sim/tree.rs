//! A tree of directories and files by number, as a file system keeps it: names point to nodes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::content::Content;

/// Number of a file or directory; never used twice.
pub(super) type Node = u64;

/// The directory that every path starts in.
pub(super) const ROOT: Node = 0;

/// One change of names. A rename is one change: a crash keeps both halves or none.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Link { dir: Node, name: String, node: Node, is_dir: bool },
    Unlink { dir: Node, name: String, node: Node },
    Rename { from: (Node, String), to: (Node, String), node: Node },
}

impl NameChange {
    /// The node whose name changes.
    pub(super) fn node(&self) -> Node {
        match self {
            Self::Link { node, .. } | Self::Unlink { node, .. } | Self::Rename { node, .. } => {
                *node
            }
        }
    }

    /// Every directory and name that changes.
    pub(super) fn places(&self) -> Vec<(Node, &str)> {
        match self {
            Self::Link { dir, name, .. } | Self::Unlink { dir, name, .. } => vec![(*dir, name)],
            Self::Rename { from, to, .. } => vec![(from.0, &from.1), (to.0, &to.1)],
        }
    }
}

/// One state of a disk. Copies share the bytes.
#[derive(Clone)]
pub(super) struct Tree {
    dirs: BTreeMap<Node, BTreeMap<String, Node>>,
    files: BTreeMap<Node, Content>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { dirs: BTreeMap::from([(ROOT, BTreeMap::new())]), files: BTreeMap::new() }
    }

    pub(super) fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Link { dir, name, node, is_dir } => {
                if *is_dir {
                    self.dirs.entry(*node).or_default();
                } else {
                    self.files.entry(*node).or_default();
                }
                self.names_mut(*dir).insert(name.clone(), *node);
            }
            NameChange::Unlink { dir, name, .. } => {
                self.names_mut(*dir).remove(name);
            }
            NameChange::Rename { from, to, node } => {
                self.names_mut(from.0).remove(&from.1);
                self.names_mut(to.0).insert(to.1.clone(), *node);
            }
        }
    }

    pub(super) fn file(&self, node: Node) -> Option<&Content> {
        self.files.get(&node)
    }

    /// The file's bytes; the file is made when this state has not seen it, so that data can outlive its name.
    pub(super) fn file_mut(&mut self, node: Node) -> &mut Content {
        self.files.entry(node).or_default()
    }

    /// Forgets a file that no name will reach again.
    pub(super) fn forget_file(&mut self, node: Node) {
        self.files.remove(&node);
    }

    /// Whether a name leads to this file.
    pub(super) fn has_name(&self, node: Node) -> bool {
        self.dirs.values().any(|names| names.values().any(|named| *named == node))
    }

    pub(super) fn names(&self, dir: Node) -> Option<&BTreeMap<String, Node>> {
        self.dirs.get(&dir)
    }

    pub(super) fn is_dir(&self, node: Node) -> bool {
        self.dirs.contains_key(&node)
    }

    /// The node of a path.
    pub(super) fn find(&self, path: &Path) -> io::Result<Node> {
        let mut node = ROOT;
        for name in names_of(path)? {
            let names = self.names(node).ok_or(Errno::NOTDIR)?;
            node = *names.get(&name).ok_or(Errno::NOENT)?;
        }
        Ok(node)
    }

    /// The directory and the name in it that a path stands for; the name need not exist.
    pub(super) fn place(&self, path: &Path) -> io::Result<(Node, String)> {
        let mut names = names_of(path)?;
        let name = names.pop().ok_or(Errno::INVAL)?;
        let mut dir = ROOT;
        for part in &names {
            dir = *self.names(dir).and_then(|dir| dir.get(part)).ok_or(Errno::NOENT)?;
        }
        if self.is_dir(dir) { Ok((dir, name)) } else { Err(Errno::NOTDIR.into()) }
    }

    /// Every file that has a name, with its path.
    pub(super) fn walk(&self) -> Vec<(PathBuf, Node)> {
        let mut files = Vec::new();
        self.visit(ROOT, Path::new("/"), &mut |path, node, is_dir| {
            if !is_dir {
                files.push((path, node));
            }
        });
        files
    }

    /// The same tree without the nodes that no name reaches.
    pub(super) fn pruned(&self) -> Self {
        let mut tree = Self::new();
        tree.dirs.insert(ROOT, self.names(ROOT).cloned().unwrap_or_default());
        self.visit(ROOT, Path::new("/"), &mut |_, node, is_dir| {
            if is_dir {
                tree.dirs.insert(node, self.names(node).cloned().unwrap_or_default());
            } else {
                tree.files.insert(node, self.file(node).cloned().unwrap_or_default());
            }
        });
        tree
    }

    /// A hash over all paths and bytes; node numbers do not count.
    pub(super) fn fingerprint(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.visit(ROOT, Path::new("/"), &mut |path, node, is_dir| {
            let path = path.as_os_str().as_encoded_bytes();
            hash.update(&(path.len() as u64).to_le_bytes());
            hash.update(path);
            hash.update(&[u8::from(is_dir)]);
            if let Some(content) = self.file(node) {
                content.fingerprint(&mut hash);
            }
        });
        hash.digest128()
    }

    fn visit(&self, dir: Node, path: &Path, found: &mut dyn FnMut(PathBuf, Node, bool)) {
        for (name, node) in self.names(dir).into_iter().flatten() {
            let path = path.join(name);
            let is_dir = self.is_dir(*node);
            found(path.clone(), *node, is_dir);
            if is_dir {
                self.visit(*node, &path, found);
            }
        }
    }

    fn names_mut(&mut self, dir: Node) -> &mut BTreeMap<String, Node> {
        self.dirs.entry(dir).or_default()
    }
}

/// The names on the way from the root. Only absolute paths without `.` and `..` have a meaning here.
fn names_of(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            _ => return Err(Errno::INVAL.into()),
        }
    }
    if path.is_absolute() { Ok(names) } else { Err(Errno::INVAL.into()) }
}
