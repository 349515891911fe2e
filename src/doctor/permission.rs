//! Whether this user may read performance counters, as ncu does.

use super::{Finding, Look, parse};
use crate::tools::nsight::COUNTERS_FOR_ALL;

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;

pub(super) fn counters(look: &Look) -> Finding {
    if let Err(none) = look.cards.found() {
        return none;
    }
    let params = look.machine.read("/proc/driver/nvidia/params");
    let Some(admins_only) = params.as_deref().and_then(parse::counters_for_admins_only) else {
        return Finding::skip("/proc/driver/nvidia/params does not say; ncu will");
    };
    if !admins_only {
        return Finding::pass("every user may read performance counters (RmProfilingAdminOnly: 0)");
    }
    let held = look.machine.read("/proc/self/status").as_deref().and_then(parse::capabilities).unwrap_or(0);
    match held & (CAP_SYS_ADMIN | CAP_PERFMON) {
        0 => Finding::warn("performance counters are for administrators (RmProfilingAdminOnly: 1), and this is none: ncu will fail with ERR_NVGPUCTRPERM")
            .remedy(COUNTERS_FOR_ALL),
        _ => Finding::pass("performance counters are for administrators (RmProfilingAdminOnly: 1), and this process is one"),
    }
}
