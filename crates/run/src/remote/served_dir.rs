//! The files of a served run on its machine: the work, commands to the run, and its news. Commands and news are only
//! appended, so that a new connection needs only an offset in each.

use std::{
    collections::hash_map::RandomState,
    fs::{self, DirBuilder, File, OpenOptions},
    hash::{BuildHasher, Hasher},
    io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    protocol::{Listed, News, RemoteRequest},
    wire::MAX_LINE_BYTES,
};
use llmprof_base::{foreign::line, read, user_data::user_data_dir};

/// Characters of a name, without those that are easily confused.
const LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
const NAME_LENGTH: usize = 6;
/// An ended run can be fetched for this long.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);
/// Maximum number of runs in a list.
const MAX_LISTED: usize = 100;

/// The directory of a served run.
#[derive(Debug, Clone)]
pub struct ServedDir {
    dir: PathBuf,
}

/// Reads lines that are appended to a file.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    pub at: u64,
}

impl ServedDir {
    /// Creates a new one below the user's data directory. Old ones are removed.
    pub fn create(work: &RemoteRequest) -> io::Result<ServedDir> {
        let root = root()?;
        DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        remove_old(&root);
        loop {
            let dir = root.join(random_name());
            match DirBuilder::new().mode(0o700).create(&dir) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                created => created?,
            }
            let served_dir = ServedDir { dir };
            fs::write(served_dir.dir.join("work.json"), serde_json::to_vec(work)?)?;
            for name in ["orders.ndjson", "news.ndjson", "alive", "watched"] {
                OpenOptions::new().create(true).append(true).mode(0o600).open(served_dir.dir.join(name))?;
            }
            return Ok(served_dir);
        }
    }

    /// The existing one with this name; if the name is empty, the only one in progress.
    pub fn find(name: &str) -> Result<ServedDir, String> {
        let refused = |e: io::Error| format!("the runs on the remote host cannot be listed: {e}");
        if name.is_empty() {
            let alive: Vec<Listed> =
                ServedDir::list().map_err(refused)?.into_iter().filter(|run| run.alive).collect();
            return match &alive[..] {
                [only] => ServedDir::find(&only.id),
                [] => Err("no run is in progress on the remote host".to_owned()),
                several => {
                    let names: Vec<&str> = several.iter().map(|run| run.id.as_str()).collect();
                    Err(format!(
                        "{} runs are in progress on the remote host: {}; name one",
                        several.len(),
                        names.join(", ")
                    ))
                }
            };
        }
        let dir = root().map_err(refused)?.join(name);
        let is_name = name.len() == NAME_LENGTH && name.bytes().all(|b| LETTERS.contains(&b));
        match is_name && dir.join("work.json").is_file() {
            true => Ok(ServedDir { dir }),
            false => Err(format!("there is no run {}; list them with --reconnect list", line(name, 40))),
        }
    }

    /// Newest first.
    pub fn list() -> io::Result<Vec<Listed>> {
        let mut found: Vec<Listed> = Vec::new();
        let entries = match fs::read_dir(root()?) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        for entry in entries.flatten() {
            let served_dir = ServedDir { dir: entry.path() };
            let (Ok(work), Ok(made)) = (
                served_dir.work(),
                fs::metadata(served_dir.dir.join("work.json")).and_then(|m| m.modified()),
            ) else {
                continue;
            };
            let mut listed = Listed {
                id: served_dir.name(),
                dir: None,
                overrides: work.overrides,
                command: work.command,
                age_s: made.elapsed().unwrap_or_default().as_secs(),
                alive: served_dir.is_alive(),
                outcome: None,
            };
            for news in served_dir.news().read::<News>().unwrap_or_default() {
                match news {
                    News::Began { dir, overrides, .. } => {
                        (listed.dir, listed.overrides, listed.outcome) = (Some(dir), overrides, None);
                    }
                    News::Done { ended, .. } | News::Left { ended, .. } => {
                        listed.outcome = Some(ended.finished.outcome);
                    }
                    News::Answer { .. } | News::Refused { .. } => {}
                }
            }
            found.push(listed);
        }
        found.sort_by_key(|run| run.age_s);
        found.truncate(MAX_LISTED);
        Ok(found)
    }

    pub fn open(dir: &Path) -> ServedDir {
        ServedDir { dir: dir.to_owned() }
    }

    pub fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    pub fn work(&self) -> io::Result<RemoteRequest> {
        Ok(serde_json::from_slice(&read::bytes(&self.dir.join("work.json"), MAX_LINE_BYTES)?)?)
    }

    pub fn orders(&self) -> Tail {
        Tail { path: self.dir.join("orders.ndjson"), at: 0 }
    }

    pub fn news(&self) -> Tail {
        Tail { path: self.dir.join("news.ndjson"), at: 0 }
    }

    pub fn output(&self) -> PathBuf {
        self.dir.join("output.log")
    }

    /// The process of the run holds this lock while it exists.
    pub fn hold(&self) -> io::Result<File> {
        let file = File::open(self.dir.join("alive"))?;
        // A process that asks whether the run is in progress holds the lock for a moment.
        file.lock()?;
        Ok(file)
    }

    pub fn is_alive(&self) -> bool {
        let free = File::open(self.dir.join("alive")).map(|file| file.try_lock_shared().is_ok());
        matches!(free, Ok(false))
    }

    /// Records that a screen is connected.
    pub fn watch(&self) {
        let touch =
            || File::options().append(true).open(self.dir.join("watched"))?.set_modified(SystemTime::now());
        // On failure the run only ends a little earlier after its end.
        let _: io::Result<()> = touch();
    }

    /// The time since a screen was connected.
    pub fn unwatched(&self) -> Duration {
        let seen = fs::metadata(self.dir.join("watched")).and_then(|about| about.modified());
        seen.ok().and_then(|seen| seen.elapsed().ok()).unwrap_or_default()
    }
}

impl Tail {
    /// The complete lines that were appended since the last call. Unreadable ones are skipped.
    pub fn read<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        Ok(self.read_placed()?.into_iter().map(|(_, value)| value).collect())
    }

    /// The same, each with the offset after it.
    pub fn read_placed<T: DeserializeOwned>(&mut self) -> io::Result<Vec<(u64, T)>> {
        let mut file = File::open(&self.path)?;
        if file.metadata()?.len() <= self.at {
            return Ok(Vec::new());
        }
        file.seek(SeekFrom::Start(self.at))?;
        let mut lines = BufReader::new(file);
        let (mut found, mut bytes) = (Vec::new(), Vec::new());
        loop {
            bytes.clear();
            lines.read_until(b'\n', &mut bytes)?;
            if bytes.last() != Some(&b'\n') {
                return Ok(found);
            }
            self.at += bytes.len() as u64;
            found.extend(serde_json::from_slice(&bytes).ok().map(|value| (self.at, value)));
        }
    }

    /// Appends one line, whole.
    pub fn append(&self, value: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(value)?;
        bytes.push(b'\n');
        OpenOptions::new().append(true).open(&self.path)?.write_all(&bytes)
    }
}

fn root() -> io::Result<PathBuf> {
    let dir = user_data_dir().ok_or_else(|| io::Error::other("this user has no home directory"))?;
    Ok(dir.join("remote"))
}

fn random_name() -> String {
    // The keys of a new hasher are random.
    let mut n = RandomState::new().build_hasher().finish();
    (0..NAME_LENGTH)
        .map(|_| {
            let letter = LETTERS[(n % LETTERS.len() as u64) as usize];
            n /= LETTERS.len() as u64;
            char::from(letter)
        })
        .collect()
}

fn remove_old(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let served_dir = ServedDir { dir: entry.path() };
        let age = fs::metadata(served_dir.dir.join("news.ndjson")).and_then(|about| about.modified());
        let is_old = age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT));
        if is_old && served_dir.work().is_ok() && !served_dir.is_alive() {
            // The rest is removed another time.
            let _ = fs::remove_dir_all(&served_dir.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::protocol::Order;

    #[test]
    fn lines_are_read_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("orders.ndjson");
        fs::write(&path, "").unwrap();
        let mut tail = Tail { path: path.clone(), at: 0 };
        tail.append(&Order::ToggleKernels).unwrap();
        tail.append(&Order::Pause(true)).unwrap();
        assert_eq!(tail.read::<Order>().unwrap(), [Order::ToggleKernels, Order::Pause(true)]);
        assert_eq!(tail.read::<Order>().unwrap(), []);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"garbage\n\"lea").unwrap();
        assert_eq!(tail.read::<Order>().unwrap(), []);
        file.write_all(b"ve\"\n").unwrap();
        assert_eq!(tail.read::<Order>().unwrap(), [Order::Leave]);
    }

    #[test]
    fn a_process_holds_its_run() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("alive"), "").unwrap();
        let served_dir = ServedDir::open(dir.path());
        assert!(!served_dir.is_alive());
        let held = served_dir.hold().unwrap();
        assert!(served_dir.is_alive());
        drop(held);
        assert!(!served_dir.is_alive());
    }

    #[test]
    fn a_name_is_no_path() {
        for name in ["../..", "/etc/x", "abc", "abcde/"] {
            assert!(ServedDir::find(name).unwrap_err().starts_with("there is no run"), "{name}");
        }
    }
}
