//! Logs of NCCL.

use std::io::{self, BufRead, Read};

use llmprof_analysis::ranks::NcclLog;

/// Maximum length of a line; the rest counts as another line.
const MAX_LINE: u64 = 4096;
/// Logs of days have gigabytes: nothing new is expected beyond this size.
const MAX_LOG: u64 = 1 << 30;

pub(super) fn read_log(input: impl BufRead) -> io::Result<NcclLog> {
    let mut log = NcclLog::default();
    let mut input = input.take(MAX_LOG);
    let mut line = Vec::new();
    while input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        log.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(log)
}
