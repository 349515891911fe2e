//! Checks of Nsight Systems and Nsight Compute: which versions are installed, and whether they can be used.

use super::{Context, Finding, inventory::Gpu, parse};
use llmprof_base::tools::nsight::{self, COUNTERS_FOR_ALL, NCU, NSYS, Problem, Tool, first_for_cuda};

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_SYS_PTRACE: u64 = 1 << 19;

pub(super) fn nsys(context: &Context) -> Finding {
    installed(context, &NSYS)
}

pub(super) fn ncu(context: &Context) -> Finding {
    installed(context, &NCU)
}

fn installed(context: &Context, tool: &Tool) -> Finding {
    let mut installed = nsight::installed(&context.machine, tool, context.deadline);
    let first_for = context.inventory.cuda().and_then(first_for_cuda);
    nsight::sort_best_first(&mut installed, first_for);
    let Some(best) = installed.first() else { return missing(context, tool) };
    let mut text = best.to_string();
    if let Some(other) = installed.iter().find(|one| one.on_path && !best.on_path) {
        text += &format!("; PATH has {other}");
    } else if !best.on_path {
        text += ", not on PATH";
    }
    match best.problem(first_for) {
        None => Finding::pass(text),
        Some(Problem { what, remedy }) => Finding::warn(format!("{text}: {what}")).remedy(remedy),
    }
}

fn missing(context: &Context, tool: &Tool) -> Finding {
    match context.inventory.gpus() {
        Err(_) => Finding::skip(format!("no GPU, and {} is not installed", tool.title)),
        Ok(_) => Finding::warn(format!(
            "not found on PATH, in /opt/nvidia or /usr/local/cuda ({})",
            tool.needed_for
        ))
        .remedy(format!(
            "install {} ({}), or add the directory of {} to PATH",
            tool.title,
            tool.url(),
            tool.name
        )),
    }
}

/// Whether `attach` may join programs that were started without the library.
pub(super) fn attach(context: &Context) -> Finding {
    let scope = context.machine.read("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.and_then(|text| text.trim().parse().ok()).unwrap_or(0u32);
    let status = context.machine.read("/proc/self/status");
    let capabilities = status.as_deref().and_then(parse::capabilities).unwrap_or(0);
    let may_trace = capabilities & CAP_SYS_PTRACE != 0;
    let remedy = "sudo sysctl kernel.yama.ptrace_scope=0, or run attach as root; exec needs neither";
    match scope {
        0 => Finding::pass("running programs of this user can be joined"),
        1 | 2 if may_trace => Finding::pass("running programs can be joined (CAP_SYS_PTRACE)"),
        1 | 2 => {
            Finding::warn(format!("running programs cannot be joined (kernel.yama.ptrace_scope={scope})"))
                .remedy(remedy)
        }
        _ => Finding::warn(format!(
            "running programs cannot be joined until the system restarts (kernel.yama.ptrace_scope={scope})"
        ))
        .remedy("use exec"),
    }
}

/// Whether this user may read performance counters, as ncu does.
pub(super) fn counter_permission(context: &Context, _: &[Gpu]) -> Finding {
    let params = context.machine.read("/proc/driver/nvidia/params");
    let Some(admins_only) = params.as_deref().and_then(parse::counters_for_admins_only) else {
        return Finding::skip("unknown: not in /proc/driver/nvidia/params; ncu will report it");
    };
    if !admins_only {
        return Finding::pass("every user may read performance counters (RmProfilingAdminOnly: 0)");
    }
    let status = context.machine.read("/proc/self/status");
    let capabilities = status.as_deref().and_then(parse::capabilities).unwrap_or(0);
    match capabilities & (CAP_SYS_ADMIN | CAP_PERFMON) {
        0 => Finding::warn(
            "only administrators may read performance counters (RmProfilingAdminOnly: 1): \
             ncu will fail with ERR_NVGPUCTRPERM",
        )
        .remedy(COUNTERS_FOR_ALL),
        _ => Finding::pass(
            "only administrators may read performance counters (RmProfilingAdminOnly: 1); this process may",
        ),
    }
}
