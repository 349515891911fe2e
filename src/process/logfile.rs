//! `llmprof.log`: where the program's own remarks go, in the directory of the run at hand.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

static CURRENT: Mutex<Option<File>> = Mutex::new(None);

struct ToCurrent;

impl<'a> MakeWriter<'a> for ToCurrent {
    type Writer = CurrentFile;

    fn make_writer(&'a self) -> CurrentFile {
        CurrentFile
    }
}

/// Writes to the file of the run at hand, or nowhere.
struct CurrentFile;

impl Write for CurrentFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Some(file) = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            // A disk that is full must not end the run; the recorder counts what is lost.
            let _ = file.write_all(buf);
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts collecting remarks; `RUST_LOG` chooses which.
pub fn install() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(ToCurrent);
    // A second call, as in tests, keeps the first one's.
    let _ = subscriber.try_init();
}

/// Remarks go to `path` from now on.
pub fn redirect(path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    Ok(())
}
