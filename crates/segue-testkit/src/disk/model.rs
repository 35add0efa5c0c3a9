//! A disk in memory with a page cache that a power failure takes away.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use segue_store::{Access, Files, Lock, OpenFile, Stat};

use super::watch::{Hook, layer};

/// A disk. Clones are the same disk.
///
/// The kernel writes back single pages and folder entries whenever it likes; a power failure keeps, of what no sync has
/// confirmed, a random part: pages, lengths, and entries of folders each by itself. A page that holds durable bytes keeps them.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<World>>);

type Node = usize;

struct World {
    random: StdRng,
    page: usize,
    write_back: bool,
    drop_on_failed_sync: bool,
    boot: u64,
    clock: u64,
    syncs: u64,
    nodes: Vec<Thing>,
    pending: Vec<Entry>,
    locked: HashSet<Node>,
}

enum Thing {
    File(SimFile),
    Dir { seen: BTreeMap<OsString, Node>, kept: BTreeMap<OsString, Node> },
}

#[derive(Default)]
struct SimFile {
    seen: Vec<u8>,
    modified: u64,
    /// May be longer than `kept_len`: pages of a file whose new length is not durable.
    kept: Vec<u8>,
    kept_len: usize,
    dirty: BTreeSet<usize>,
}

/// A change of folders that is not durable yet.
struct Entry {
    remove: Option<(Node, OsString)>,
    insert: Option<(Node, OsString, Node)>,
}

impl Entry {
    fn touches(&self, dir: Node) -> bool {
        self.remove.as_ref().is_some_and(|(from, _)| *from == dir)
            || self.insert.as_ref().is_some_and(|(to, ..)| *to == dir)
    }
}

impl SimDisk {
    /// An empty disk. All chance comes from `seed`; `page` is the page size in bytes: 4,096 as in kernels, or less, so that short
    /// logs have several.
    pub fn new(seed: u64, page: usize) -> Self {
        let root = Thing::Dir { seen: BTreeMap::new(), kept: BTreeMap::new() };
        Self(Arc::new(Mutex::new(World {
            random: StdRng::seed_from_u64(seed),
            page,
            write_back: true,
            drop_on_failed_sync: true,
            boot: 0,
            clock: 1_800_000_000_000,
            syncs: 0,
            nodes: vec![root],
            pending: Vec::new(),
            locked: HashSet::new(),
        })))
    }

    /// Whether a failed sync drops the dirty pages, as Linux does: reads still show them, later syncs say nothing.
    pub fn drop_on_failed_sync(&self, drops: bool) {
        self.world().drop_on_failed_sync = drops;
    }

    /// The disk's files.
    pub fn files(&self) -> Arc<dyn Files> {
        Arc::new(self.clone())
    }

    /// The disk's files, with `hook` told of each operation.
    pub fn watched(&self, hook: Arc<dyn Hook>) -> Arc<dyn Files> {
        let disk = self.clone();
        layer(self.files(), hook, Some(Arc::new(move |path: &Path| disk.failed_sync(path))))
    }

    /// Has the kernel write all dirty pages back by itself, as it does after half a minute. Nothing is confirmed by
    /// that, lengths of files and entries of folders least of all.
    pub fn write_back(&self) {
        let mut world = self.world();
        let page = world.page;
        for thing in &mut world.nodes {
            if let Thing::File(file) = thing {
                for number in std::mem::take(&mut file.dirty) {
                    file.keep_page(number, page);
                }
            }
        }
    }

    /// How many syncs of files succeeded.
    pub fn syncs(&self) -> u64 {
        self.world().syncs
    }

    /// Kills the process: what it had open fails, its locks are free, the page cache stays.
    pub fn kill(&self) {
        let mut world = self.world();
        world.boot += 1;
        world.locked.clear();
    }

    /// Takes the power away: of what no sync has confirmed a random part stays; `keep` is about how much, from 0 to 1.
    pub fn power_off(&self, keep: f64) {
        self.kill();
        let mut guard = self.world();
        let world = &mut *guard;
        for entry in std::mem::take(&mut world.pending) {
            if world.random.random_bool(keep) {
                apply(&mut world.nodes, entry);
            }
        }
        let page = world.page;
        for thing in &mut world.nodes {
            match thing {
                Thing::Dir { seen, kept } => seen.clone_from(kept),
                Thing::File(file) => {
                    for number in std::mem::take(&mut file.dirty) {
                        if world.random.random_bool(keep) {
                            file.keep_page(number, page);
                        }
                    }
                    let (low, high) =
                        (file.kept_len.min(file.seen.len()), file.kept_len.max(file.seen.len()));
                    let len = match world.random.random_range(0..4) {
                        _ if keep == 0.0 => file.kept_len,
                        0 => file.kept_len,
                        1 | 2 => file.seen.len(),
                        _ => world.random.random_range(low..=high),
                    };
                    file.kept.resize(len, 0);
                    file.kept_len = len;
                    file.seen.clone_from(&file.kept);
                }
            }
        }
    }

    fn failed_sync(&self, path: &Path) {
        let mut world = self.world();
        if world.drop_on_failed_sync
            && let Ok(node) = world.find(path)
            && let Some(Thing::File(file)) = world.nodes.get_mut(node)
        {
            file.dirty.clear();
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The world, after the kernel had its chance to write something back.
    fn step(&self) -> MutexGuard<'_, World> {
        let mut world = self.world();
        world.clock += 1;
        if world.write_back && world.random.random_ratio(1, 6) {
            world.write_something_back();
        }
        world
    }
}

impl SimFile {
    fn keep_page(&mut self, number: usize, page: usize) {
        let start = number * page;
        let end = (start + page).min(self.seen.len());
        let Some(bytes) = self.seen.get(start..end) else { return };
        if self.kept.len() < end {
            self.kept.resize(end, 0);
        }
        if let Some(room) = self.kept.get_mut(start..end) {
            room.copy_from_slice(bytes);
        }
    }

    fn sync(&mut self, page: usize) {
        for number in std::mem::take(&mut self.dirty) {
            self.keep_page(number, page);
        }
        self.kept.resize(self.seen.len(), 0);
        self.kept_len = self.seen.len();
    }
}

impl World {
    fn write_something_back(&mut self) {
        let page = self.page;
        let node = self.random.random_range(0..self.nodes.len());
        if let Some(Thing::File(file)) = self.nodes.get_mut(node) {
            if !file.dirty.is_empty() {
                let pick = self.random.random_range(0..file.dirty.len());
                if let Some(number) = file.dirty.iter().nth(pick).copied() {
                    file.keep_page(number, page);
                    file.dirty.remove(&number);
                }
            }
        } else if !self.pending.is_empty() {
            let entry = self.pending.remove(0);
            apply(&mut self.nodes, entry);
        }
    }

    fn find(&self, path: &Path) -> io::Result<Node> {
        let mut node = 0;
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            node = *self.dir(node)?.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    fn dir(&self, node: Node) -> io::Result<&BTreeMap<OsString, Node>> {
        match self.nodes.get(node) {
            Some(Thing::Dir { seen, .. }) => Ok(seen),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn dir_mut(&mut self, node: Node) -> io::Result<&mut BTreeMap<OsString, Node>> {
        match self.nodes.get_mut(node) {
            Some(Thing::Dir { seen, .. }) => Ok(seen),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&mut self, node: Node) -> io::Result<&mut SimFile> {
        match self.nodes.get_mut(node) {
            Some(Thing::File(file)) => Ok(file),
            _ => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn parent(&self, path: &Path) -> io::Result<(Node, OsString)> {
        let name = path.file_name().map(OsStr::to_owned).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.find(path.parent().unwrap_or(Path::new("/")))?, name))
    }

    fn add(&mut self, path: &Path, thing: Thing) -> io::Result<Node> {
        let (dir, name) = self.parent(path)?;
        if self.dir(dir)?.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = self.nodes.len();
        self.nodes.push(thing);
        self.dir_mut(dir)?.insert(name.clone(), node);
        self.pending.push(Entry { remove: None, insert: Some((dir, name, node)) });
        Ok(node)
    }

    fn shift(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let node = self.dir_mut(from_dir)?.remove(&from_name).ok_or(io::ErrorKind::NotFound)?;
        self.dir_mut(to_dir)?.insert(to_name.clone(), node);
        self.pending
            .push(Entry { remove: Some((from_dir, from_name)), insert: Some((to_dir, to_name, node)) });
        Ok(())
    }
}

fn apply(nodes: &mut [Thing], entry: Entry) {
    if let Some((dir, name)) = entry.remove
        && let Some(Thing::Dir { kept, .. }) = nodes.get_mut(dir)
    {
        kept.remove(&name);
    }
    if let Some((dir, name, node)) = entry.insert
        && let Some(Thing::Dir { kept, .. }) = nodes.get_mut(dir)
    {
        kept.insert(name, node);
    }
}

impl Files for SimDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let thing = Thing::Dir { seen: BTreeMap::new(), kept: BTreeMap::new() };
        self.step().add(path, thing).map(|_| ())
    }

    fn open(&self, path: &Path, _access: Access) -> io::Result<Box<dyn OpenFile>> {
        let mut world = self.step();
        let node = world.find(path)?;
        world.file(node)?;
        Ok(Box::new(Handle { disk: self.clone(), node, boot: world.boot }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut world = self.step();
        let node = match world.find(path) {
            Ok(node) => {
                let file = world.file(node)?;
                file.seen.clear();
                file.dirty.clear();
                node
            }
            Err(_) => world.add(path, Thing::File(SimFile::default()))?,
        };
        Ok(Box::new(Handle { disk: self.clone(), node, boot: world.boot }))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let mut world = self.step();
        let node = match world.find(path) {
            Ok(node) => node,
            Err(_) => world.add(path, Thing::File(SimFile::default()))?,
        };
        if !world.locked.insert(node) {
            return Ok(None);
        }
        Ok(Some(Box::new(Handle { disk: self.clone(), node, boot: world.boot }.locked())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step().shift(from, to)
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.step();
        if world.find(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        world.shift(from, to)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = self.step();
        let (dir, name) = world.parent(path)?;
        world.dir_mut(dir)?.remove(&name).ok_or(io::ErrorKind::NotFound)?;
        world.pending.push(Entry { remove: Some((dir, name)), insert: None });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.step();
        let dir = world.find(path)?;
        world.dir(dir)?;
        let (done, rest) =
            std::mem::take(&mut world.pending).into_iter().partition(|entry| entry.touches(dir));
        world.pending = rest;
        let done: Vec<Entry> = done;
        for entry in done {
            apply(&mut world.nodes, entry);
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let world = self.step();
        Ok(world.dir(world.find(path)?)?.keys().cloned().collect())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let world = self.step();
        Ok(match world.nodes.get(world.find(path)?) {
            Some(Thing::File(file)) => Stat {
                dir: false,
                len: file.seen.len() as u64,
                modified: Duration::from_millis(file.modified),
            },
            _ => Stat { dir: true, len: 0, modified: Duration::from_millis(world.clock) },
        })
    }

    fn network(&self, _path: &Path) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// A file or a lock that a process has open.
struct Handle {
    disk: SimDisk,
    node: Node,
    boot: u64,
}

/// A lock that a process holds.
struct SimLock(Handle);

impl Handle {
    fn locked(self) -> SimLock {
        SimLock(self)
    }

    fn step(&self) -> io::Result<MutexGuard<'_, World>> {
        let world = self.disk.step();
        // The process that had it open is dead; nothing it still does reaches the disk.
        if world.boot == self.boot { Ok(world) } else { Err(super::watch::Fault::Io.error()) }
    }
}

impl OpenFile for Handle {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut world = self.step()?;
        let file = world.file(self.node)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = file.seen.get(from..).unwrap_or_default();
        let len = bytes.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..len), bytes.get(..len)) {
            to.copy_from_slice(from);
        }
        Ok(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut world = self.step()?;
        let (page, clock) = (world.page, world.clock);
        let file = world.file(self.node)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let to = from + bytes.len();
        if file.seen.len() < to {
            file.seen.resize(to, 0);
        }
        if let Some(room) = file.seen.get_mut(from..to) {
            room.copy_from_slice(bytes);
        }
        file.dirty.extend(from / page..=(to - 1) / page);
        file.modified = clock;
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut world = self.step()?;
        let (page, clock) = (world.page, world.clock);
        let file = world.file(self.node)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        file.seen.resize(len, 0);
        file.dirty.retain(|number| number * page < len);
        file.modified = clock;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.step()?;
        let page = world.page;
        world.file(self.node)?.sync(page);
        world.syncs += 1;
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.step()?.file(self.node)?.seen.len() as u64)
    }
}

impl Lock for SimLock {
    fn describe(&self, text: &str) -> io::Result<()> {
        self.0.truncate(0)?;
        self.0.write_at(0, text.as_bytes())
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut world = self.0.disk.world();
        if world.boot == self.0.boot {
            world.locked.remove(&self.0.node);
        }
    }
}
