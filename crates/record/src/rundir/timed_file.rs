//! A file that a separate thread reads: a disk that does not answer is an error, not an endless wait.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::Duration,
};

use llmprof_base::read;

/// A part of the file to read: its offset and its maximum length.
type Part = (u64, usize);

/// A regular file whose reads have a time limit. It can be read from its beginning or any offset.
pub(super) struct TimedFile {
    parts: SyncSender<Part>,
    contents: Receiver<io::Result<Vec<u8>>>,
    offset: u64,
    limit: Duration,
    /// An answer is missing. When it arrives, it does not belong to the next question.
    silent: bool,
}

impl TimedFile {
    pub fn open(path: &Path, limit: Duration) -> io::Result<TimedFile> {
        let (parts, wanted) = mpsc::sync_channel(1);
        let (found, contents) = mpsc::sync_channel(1);
        let path = path.to_owned();
        thread::Builder::new().name("llmprof-file".to_owned()).spawn(move || serve(path, &wanted, &found))?;
        let mut file = TimedFile { parts, contents, offset: 0, limit, silent: false };
        // The first answer is that of opening the file.
        file.answer()?;
        Ok(file)
    }

    fn answer(&mut self) -> io::Result<Vec<u8>> {
        match self.contents.recv_timeout(self.limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.silent = true;
                Err(self.timed_out())
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn timed_out(&self) -> io::Error {
        let text = format!("the disk does not answer within {} s", self.limit.as_secs_f64());
        io::Error::new(io::ErrorKind::TimedOut, text)
    }
}

impl Read for TimedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.silent {
            return Err(self.timed_out());
        }
        let part = (self.offset, buffer.len());
        self.parts.send(part).map_err(|_| io::ErrorKind::BrokenPipe)?;
        let content = self.answer()?;
        buffer[..content.len()].copy_from_slice(&content);
        self.offset += content.len() as u64;
        Ok(content.len())
    }
}

impl Seek for TimedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            SeekFrom::End(_) => None,
        };
        self.offset = offset.ok_or(io::ErrorKind::Unsupported)?;
        Ok(self.offset)
    }
}

fn serve(path: PathBuf, wanted: &Receiver<Part>, found: &SyncSender<io::Result<Vec<u8>>>) {
    let mut file = match read::open(&path) {
        Ok(file) => file,
        Err(e) => return drop(found.send(Err(e))),
    };
    if found.send(Ok(Vec::new())).is_err() {
        return;
    }
    while let Ok(part) = wanted.recv() {
        if found.send(content_of(&mut file, part)).is_err() {
            return;
        }
    }
}

fn content_of(file: &mut File, (offset, length): Part) -> io::Result<Vec<u8>> {
    let mut content = vec![0; length];
    file.seek(SeekFrom::Start(offset))?;
    let read = file.read(&mut content)?;
    content.truncate(read);
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_like_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &content).unwrap();
        let mut file =
            io::BufReader::with_capacity(1000, TimedFile::open(&path, Duration::from_secs(60)).unwrap());
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all, content);
        file.seek(SeekFrom::Start(399_990)).unwrap();
        all.clear();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all, content[399_990..]);
        let missing = TimedFile::open(&dir.path().join("b"), Duration::from_secs(60));
        assert_eq!(missing.err().unwrap().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_disk_that_does_not_answer_is_an_error() {
        let ((parts, wanted), (found, contents)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
        let limit = Duration::from_millis(20);
        let mut file = TimedFile { parts, contents, offset: 0, limit, silent: false };
        let error = file.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.to_string(), "the disk does not answer within 0.02 s");
        // The late answer does not belong to a later question.
        found.send(Ok(vec![1, 2, 3])).unwrap();
        file.seek(SeekFrom::Start(100)).unwrap();
        assert_eq!(file.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(wanted.try_iter().collect::<Vec<_>>(), [(0, 8)]);
    }
}
