//! Checks of Nsight Systems and Nsight Compute: which ones are there, and whether they would do.

use super::{Finding, Look};
use crate::tools::nsight::{self, NCU, NSYS, Tool, Trouble, first_for_cuda};

pub(super) fn nsys(look: &Look) -> Finding {
    examined(look, &NSYS)
}

pub(super) fn ncu(look: &Look) -> Finding {
    examined(look, &NCU)
}

fn examined(look: &Look, tool: &Tool) -> Finding {
    let mut installed = nsight::installed(&look.machine, tool, look.until);
    let first_for = look.cards.cuda().and_then(first_for_cuda);
    nsight::best_first(&mut installed, first_for);
    let Some(best) = installed.first() else { return missing(look, tool) };
    let mut words = best.words();
    if let Some(other) = installed.iter().find(|one| one.on_path && !best.on_path) {
        words += &format!("; the PATH has {}", other.words());
    } else if !best.on_path {
        words += ", not on the PATH";
    }
    match best.trouble(first_for) {
        None => Finding::pass(words),
        Some(Trouble { what, remedy }) => Finding::warn(format!("{words}: {what}")).remedy(remedy),
    }
}

fn missing(look: &Look, tool: &Tool) -> Finding {
    let words = format!("not found on the PATH, under /opt/nvidia or /usr/local/cuda ({})", tool.needed_for);
    match look.cards.found() {
        Err(_) => Finding::skip(format!("no GPU here, and {} is not installed", tool.title)),
        Ok(_) => Finding::warn(words).remedy(format!(
            "install {} ({}), or put the folder of {} on the PATH",
            tool.title,
            tool.url(),
            tool.name
        )),
    }
}
