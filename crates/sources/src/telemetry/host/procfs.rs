//! Parsers for `/proc`: invalid values are omitted, never guessed.

/// The unit of CPU time in `/proc`, the same on all architectures with GPUs.
pub const TICKS_PER_S: f64 = 100.0;

/// CPU time of one core since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreTicks {
    pub core: u32,
    pub busy: u64,
    pub total: u64,
}

/// The `cpuN` lines of `/proc/stat`.
pub fn core_ticks(stat: &str) -> Vec<CoreTicks> {
    stat.lines().filter_map(core_line).collect()
}

fn core_line(line: &str) -> Option<CoreTicks> {
    let (core, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
    let core = core.parse().ok()?;
    // user nice system idle iowait irq softirq steal; guest time is part of user time already.
    let ticks: Vec<u64> =
        rest.split_ascii_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)?.saturating_add(ticks.get(4).copied().unwrap_or(0));
    let total = ticks.iter().fold(0u64, |sum, &ticks| sum.saturating_add(ticks));
    Some(CoreTicks { core, busy: total - idle.min(total), total })
}

/// The utilisation of every core, 0–100. Empty if one of them is not known, so that an index always refers to the same
/// core.
pub fn busy_pct(before: &[CoreTicks], after: &[CoreTicks]) -> Vec<f32> {
    after
        .iter()
        .map(|now| {
            let then = before.iter().find(|then| then.core == now.core)?;
            let total = now.total.checked_sub(then.total).filter(|&ticks| ticks > 0)?;
            // Idle time may decrease a little on a core that was offline.
            let busy = now.busy.saturating_sub(then.busy).min(total);
            Some((busy as f64 / total as f64 * 100.0) as f32)
        })
        .collect::<Option<Vec<f32>>>()
        .unwrap_or_default()
}

/// User and system time in `/proc/self/stat`.
pub fn process_ticks(stat: &str) -> Option<u64> {
    // The name is in parentheses and may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user.saturating_add(system))
}

/// Total minus available memory in `/proc/meminfo`.
pub fn mem_used_bytes(meminfo: &str) -> Option<u64> {
    kib(meminfo, "MemTotal:")?.checked_sub(kib(meminfo, "MemAvailable:")?)?.checked_mul(1024)
}

/// Resident memory in `/proc/self/status`, which unlike `statm` is not in pages.
pub fn rss_bytes(status: &str) -> Option<u64> {
    kib(status, "VmRSS:")?.checked_mul(1024)
}

fn kib(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The `cpu MHz` lines of `/proc/cpuinfo`.
pub fn clocks_mhz(cpuinfo: &str) -> Vec<f32> {
    cpuinfo
        .lines()
        .filter_map(|line| line.strip_prefix("cpu MHz")?.split_once(':')?.1.trim().parse().ok())
        .filter(|mhz: &f32| mhz.is_finite() && *mhz > 0.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "cpu  200 0 100 700 50 0 0 0 0 0\n\
                        cpu0 100 0 50 350 25 0 0 0 0 0\n\
                        cpu12 100 5 50 350 25 1 2 3 40 0\n\
                        intr 541564 0 0\ncpux 1 2 3 4\ncpu3 1 2\n";

    #[test]
    fn stat_lines_become_cores() {
        let expected =
            [CoreTicks { core: 0, busy: 150, total: 525 }, CoreTicks { core: 12, busy: 161, total: 536 }];
        assert_eq!(core_ticks(STAT), expected);
    }

    #[test]
    fn shares_come_from_differences() {
        let ticks = |core, busy, total| CoreTicks { core, busy, total };
        let cases: [(&str, CoreTicks, CoreTicks, Vec<f32>); 5] = [
            ("half busy", ticks(0, 10, 100), ticks(0, 60, 200), vec![50.0]),
            ("no time passed", ticks(0, 10, 100), ticks(0, 10, 100), vec![]),
            ("counters went back", ticks(0, 10, 100), ticks(0, 5, 50), vec![]),
            ("idle went back", ticks(0, 10, 100), ticks(0, 30, 110), vec![100.0]),
            ("another core", ticks(0, 10, 100), ticks(1, 60, 200), vec![]),
        ];
        for (what, before, after, expected) in cases {
            assert_eq!(busy_pct(&[before], &[after]), expected, "{what}");
        }
    }

    #[test]
    fn a_process_name_may_contain_anything() {
        let fields = "S 1 1 1 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0";
        for name in ["llmprof-tui", "a b", "x) S 1 (y", ")("] {
            assert_eq!(process_ticks(&format!("42 ({name}) {fields}")), Some(300), "{name}");
        }
        assert_eq!(process_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn memory_and_clocks() {
        let meminfo = "MemTotal:       16000 kB\nMemFree:  1000 kB\nMemAvailable:    6000 kB\n";
        assert_eq!(mem_used_bytes(meminfo), Some(10_000 * 1024));
        assert_eq!(mem_used_bytes("MemTotal: 16000 kB\n"), None);
        assert_eq!(rss_bytes("VmHWM:\t 900 kB\nVmRSS:\t     800 kB\n"), Some(800 * 1024));
        let cpuinfo =
            "processor\t: 0\ncpu MHz\t\t: 2100.000\nprocessor\t: 1\ncpu MHz\t\t: 2300.5\ncpu MHz : nan\n";
        assert_eq!(clocks_mhz(cpuinfo), [2100.0, 2300.5]);
    }

    proptest! {
        #[test]
        fn garbage_is_survived(text in "\\PC*", tail in "[a-z0-9 :()\\n-]{0,200}") {
            for text in [&text, &tail, &format!("cpu0 {tail}"), &format!("1 ({text}) {tail}"), &format!("MemTotal: {tail}")] {
                let cores = core_ticks(text);
                prop_assert!(cores.iter().all(|core| core.busy <= core.total));
                prop_assert!(busy_pct(&cores, &cores).is_empty());
                let _ = (process_ticks(text), mem_used_bytes(text), rss_bytes(text), clocks_mhz(text));
            }
        }

        #[test]
        fn shares_stay_within_bounds(a in prop::array::uniform8(any::<u64>()), b in prop::array::uniform8(any::<u64>())) {
            let line = |fields: [u64; 8]| format!("cpu0 {}", fields.map(|field| field.to_string()).join(" "));
            let shares = busy_pct(&core_ticks(&line(a)), &core_ticks(&line(b)));
            prop_assert!(shares.iter().all(|pct| (0.0..=100.0).contains(pct)));
        }
    }
}
