//! `llmprof.log`: the program's own log, in the directory of the current run.

use std::{
    fs::File,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::foreign::visible;

static CURRENT: Mutex<Option<File>> = Mutex::new(None);

struct ToCurrent;

impl<'a> MakeWriter<'a> for ToCurrent {
    type Writer = CurrentFile;

    fn make_writer(&'a self) -> CurrentFile {
        CurrentFile
    }
}

/// Writes to the log file of the current run; without a run the text is dropped.
struct CurrentFile;

impl Write for CurrentFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Some(file) = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            // A full disk must not end the run; the recorder counts losses.
            let _ = file.write_all(visible(&String::from_utf8_lossy(buf)).as_bytes());
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Installs the logger; `RUST_LOG` filters it.
pub fn install() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(ToCurrent);
    // A second call, as in tests, keeps the first logger.
    let _ = subscriber.try_init();
}

/// Sends the log to `file` from now on.
pub fn redirect(file: File) {
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
}
