//! Hand-made logs that a reader can misread, each with what must be reported and what must not.

use std::fs;

use crate::common::{ProgramOutput, run};

fn diagnose(bytes: &[u8]) -> ProgramOutput {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log.csv"), bytes).unwrap();
    run(dir.path(), &["diagnose", "log.csv"])
}

/// A log of nvidia-smi, one row every `step_ms`; `row` returns the cells after the time.
fn log(header: &str, rows: u32, step_ms: u32, row: impl Fn(u32) -> String) -> String {
    let line = |i: u32| {
        let ms = i * step_ms;
        let (minute, second) = (ms / 60_000, ms / 1000 % 60);
        format!("2026/11/15 08:{minute:02}:{second:02}.{:03}, {}\n", ms % 1000, row(i))
    };
    format!("timestamp, {header}\n{}", (0..rows).map(line).collect::<String>())
}

const LOAD: &str = "utilization.gpu [%], clocks.current.sm [MHz], clocks_event_reasons.active";

struct Case {
    name: &'static str,
    log: Vec<u8>,
    code: i32,
    /// Expected in the output or in the error.
    says: &'static [&'static str],
    not: &'static [&'static str],
}

fn case(
    name: &'static str,
    log: impl Into<Vec<u8>>,
    says: &'static [&'static str],
    not: &'static [&'static str],
) -> Case {
    Case { name, log: log.into(), code: 0, says, not }
}

fn refused(name: &'static str, log: impl Into<Vec<u8>>, says: &'static [&'static str]) -> Case {
    Case { name, log: log.into(), code: 1, says, not: &[] }
}

fn check(cases: Vec<Case>) {
    for Case { name, log, code, says, not } in cases {
        let said = diagnose(&log);
        let all = format!("{name}: exit code {}\n{}\n{}", said.code, said.out, said.err);
        assert_eq!(said.code, code, "{all}");
        for text in says {
            assert!(said.out.contains(text) || said.err.contains(text), "{text:?} is not in {all}");
        }
        for text in not {
            assert!(!said.out.contains(text), "{text:?} is in {all}");
        }
    }
}

#[test]
fn values_that_do_not_belong_to_their_column_are_refused_with_the_line() {
    let power = "power.draw [W], temperature.gpu, clocks_event_reasons.active";
    check(vec![
        refused(
            "decimal commas without quotes",
            log(power, 20, 1000, |_| "690,10 W, 55, 0x0000000000000000".to_owned()),
            &["line 2: 5 values for 4 columns", "LC_ALL=C"],
        ),
        refused(
            "a temperature in the column of the mask",
            log("clocks_event_reasons.active, power.draw [W]", 20, 1000, |_| "690, 55 W".to_owned()),
            &["line 2", "\"690\" in the column clocks_event_reasons.active is not a mask"],
        ),
        refused(
            "a unit of another column",
            log("clocks.sm [MHz], power.draw [W]", 20, 1000, |_| "690.10 W, 1980 MHz".to_owned()),
            &["line 2", "has another unit than the column"],
        ),
        case(
            "a torn row",
            log(LOAD, 30, 1000, |_| "99 %, 1980 MHz, 0x0".to_owned()) + "2026/11/15 08:00:30.000, 99 %, 19",
            &["30 rows of a log, 1 unreadable rows skipped", "Not throttled"],
            &[],
        ),
    ]);
}

/// Two GPUs in one log: the first is power-capped, the second is idle.
fn two(header: &str, first: &str, second: &str) -> String {
    let row = |i: u32| format!("2026/11/15 08:00:{:02}.{:03}", i / 2, 4 * (i % 2));
    let cells = |i: u32| if i.is_multiple_of(2) { first } else { second };
    let rows: String = (0..80).map(|i| format!("{}, {}\n", row(i), cells(i))).collect();
    format!("timestamp, {header}\n{rows}")
}

#[test]
fn gpus_without_an_index_are_kept_apart() {
    let capped = "99 %, 1440 MHz, 0x0000000000000004";
    let idle = "0 %, 345 MHz, 0x0000000000000001";
    let with = |name: &str, cells: &str| format!("{name}, {cells}");
    let both: &[&str] = &["GPU 0 ·", "power-capped: 100 % of the time", "GPU 1 ·", "The GPU is idle."];
    let separated = |name, column: &str, a: &str, b: &str| {
        case(name, two(&with(column, LOAD), &with(a, capped), &with(b, idle)), both, &[])
    };
    check(vec![
        case("by order", two(LOAD, capped, idle), both, &[]),
        case("by order, said", two(LOAD, capped, idle), &["GPUs identified by the order of their rows"], &[]),
        separated("by order, equal names", "name", "NVIDIA H200", "NVIDIA H200"),
        separated("by name", "name", "NVIDIA H200", "NVIDIA A40"),
        separated("by bus", "pci.bus_id", "00000000:01:00.0", "00000000:02:00.0"),
        separated("a serial number that is not there", "serial", "[N/A]", "[N/A]"),
        case(
            "by name, said",
            two(&with("name", LOAD), &with("NVIDIA H200", capped), &with("NVIDIA A40", idle)),
            &["GPUs identified by name"],
            &[],
        ),
        case(
            "one GPU with a late row",
            log(LOAD, 60, 200, |_| capped.to_owned()) + &format!("2026/11/15 08:00:16.000, {capped}\n"),
            &["in 61 rows of a log)", "power-capped: 100 %"],
            &["GPU 1"],
        ),
        case(
            "one GPU, sampled in bursts",
            (0..5).fold(format!("timestamp, {LOAD}\n"), |text, minute| {
                let row = |i| format!("2026/11/15 08:{minute:02}:00.{}00, {capped}\n", i);
                text + &(0..10).map(row).collect::<String>()
            }),
            &["in 50 rows of a log"],
            &["GPU 1"],
        ),
    ]);
}

#[test]
fn a_low_clock_without_a_reason_is_reported() {
    let header = format!("{LOAD}, clocks.max.sm [MHz], clocks.mem [MHz], clocks.max.mem [MHz]");
    let at = |sm: u32, mem: u32, used: u32| {
        log(&header, 60, 1000, move |_| {
            format!("{used} %, {sm} MHz, 0x0000000000000000, 1980 MHz, {mem} MHz, 10501 MHz")
        })
    };
    let lost = |i: u32| match i < 30 {
        true => "NVIDIA H200, 99 %, 1980 MHz, 0x0".to_owned(),
        false => "[GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]".to_owned(),
    };
    check(vec![
        case(
            "memory clock",
            at(1980, 810, 100),
            &["The memory clock is below its maximum for an unknown reason: 810 of 10501 MHz", "-rmc"],
            &["Not throttled"],
        ),
        case(
            "SM clock",
            at(1200, 10501, 100),
            &["The SM clock is below its maximum for an unknown reason: 1200 of 1980 MHz", "Candidates"],
            &["Not throttled"],
        ),
        case(
            "an SM clock that falls now and then",
            log(&header, 60, 1000, |i| {
                let mhz = if i % 10 < 7 { 1980 } else { 600 };
                format!("100 %, {mhz} MHz, 0x0000000000000000, 1980 MHz, 10501 MHz, 10501 MHz")
            }),
            &[
                "The SM clock is below its maximum for an unknown reason: 600 of 1980 MHz in 30 % of the time at full load",
            ],
            &["Not throttled"],
        ),
        case(
            "usual clocks",
            at(1755, 10251, 100),
            &["Not throttled (SM clock 1755 of 1980 MHz)"],
            &["unknown"],
        ),
        case("a light load", at(600, 810, 30), &["Not throttled"], &["unknown"]),
        case(
            "a lost GPU",
            log(&format!("name, {LOAD}"), 60, 1000, lost),
            &["GPU 0 · NVIDIA H200", "GPU 0 is lost: line 32 of the log, after 30.0 s.", "Xid"],
            &["Not throttled"],
        ),
    ]);
}

#[test]
fn limits_without_a_column_are_named() {
    let inactive = |reasons: &[&str]| {
        let columns: String =
            reasons.iter().map(|reason| format!(", clocks_event_reasons.{reason}")).collect();
        let cells = ", Not Active".repeat(reasons.len());
        let header = format!("utilization.gpu [%], clocks.current.sm [MHz]{columns}");
        log(&header, 60, 1000, |_| format!("99 %, 1980 MHz{cells}"))
    };
    let thermal = "sw_thermal_slowdown";
    check(vec![
        case(
            "the power cap alone",
            inactive(&["sw_power_cap"]),
            &[
                "None of the limits in the log was active.",
                "It has no column for: hardware slowdown, thermal slowdown (",
            ],
            &["Not throttled"],
        ),
        case(
            "the thermal slowdown alone",
            inactive(&[thermal]),
            &["It has no column for: power cap, hardware slowdown ("],
            &["Not throttled"],
        ),
        case(
            "one of the two causes of the hardware slowdown",
            inactive(&["sw_power_cap", thermal, "hw_thermal_slowdown"]),
            &["It has no column for: hardware slowdown ("],
            &["Not throttled"],
        ),
        case(
            "both causes of the hardware slowdown",
            inactive(&["sw_power_cap", thermal, "hw_thermal_slowdown", "hw_power_brake_slowdown"]),
            &["Not throttled."],
            &["no column"],
        ),
        case(
            "the hardware slowdown itself",
            inactive(&["sw_power_cap", thermal, "hw_slowdown"]),
            &["Not throttled."],
            &["no column"],
        ),
    ]);
}

#[test]
fn idle_is_recognised_without_utilisation() {
    let header = "clocks.current.sm [MHz], clocks_event_reasons.active, power.draw [W], power.limit [W], clocks.max.sm [MHz]";
    let idle_then_capped = |idle: &'static str| {
        log(header, 120, 1000, move |i| match i < 60 {
            true => format!("{idle}, 700.00 W, 1980 MHz"),
            false => "1440 MHz, 0x4, 690.00 W, 700.00 W, 1980 MHz".to_owned(),
        })
    };
    let says: &[&str] =
        &["The GPU is power-capped: 100 % of the time", "no utilisation: load is estimated from clock event"];
    check(vec![
        case("by the idle reason", idle_then_capped("210 MHz, 0x1, 70.00 W"), says, &["89 %"]),
        case("by the clock", idle_then_capped("210 MHz, 0x0, 70.00 W"), says, &["89 %"]),
        case("by the power", idle_then_capped("1980 MHz, 0x0, 120.00 W"), says, &[]),
    ]);
}

const DMON: &str = "\
# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk  pviol  tviol
# Idx      W      C      C      %      %    MHz    MHz      %   bool
";

#[test]
fn other_forms_of_logs_are_read() {
    let capped = |i: u32| if i < 20 { (1980, 0) } else { (1440, 4) };
    let semicolons = |date: &str, sep: &str| -> String {
        let rows = (0..40).map(|i| {
            let (mhz, bits) = capped(i);
            format!("{date} 08:00:{i:02},500{sep}99 %{sep}{mhz} MHz{sep}0x{bits:016x}{sep}690,10 W\n")
        });
        let header = format!("timestamp, {LOAD}, power.draw [W]").replace(", ", sep) + "\n";
        header + &rows.collect::<String>()
    };
    let quoted = log(&format!("{LOAD}, power.draw [W]"), 40, 1000, |i| {
        let (mhz, bits) = capped(i);
        format!("99 %, {mhz} MHz, 0x{bits:x}, \"690,10 W\"")
    });
    let wide: Vec<u8> = std::iter::once(0xfeff)
        .chain(semicolons("2026/11/15", ";").encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    let dmon_row = |i: u32| {
        let (mhz, bits) = capped(i);
        format!("    0    690     58      -     99     20   3201   {mhz}     {}      0\n", 25 * bits)
    };
    let dmon: String =
        (0..40).map(|i| if i == 25 { DMON.to_owned() } else { String::new() } + &dmon_row(i)).collect();
    let timed: String =
        (0..40).map(|i| format!(" 20261115   08:00:{i:02} {}", dmon_row(i).trim_start())).collect();
    let timed_header = DMON.replace("# gpu", "#Date  Time  gpu").replace("# Idx", "#YYYYMMDD HH:MM:SS Idx");
    let found: &[&str] = &["power-capped: 5", "SM 1980 → 1440 MHz", "26,91"];
    check(vec![
        case("semicolons", semicolons("2026/11/15", ";"), found, &[]),
        case("German dates", semicolons("15.11.2026", ";"), found, &[]),
        case("tabs", semicolons("2026/11/15", "\t"), found, &[]),
        case("decimal commas in quotes", quoted, found, &[]),
        case("UTF-16", wide, found, &[]),
        case("dmon", format!("{DMON}{dmon}"), found, &[]),
        case("dmon, said", format!("{DMON}{dmon}"), &["1 s between polls is assumed"], &[]),
        case("dmon with times", format!("{timed_header}{timed}"), found, &["assumed"]),
        refused(
            "pmon",
            "# gpu        pid  type    sm   mem   command\n    0       2201     C    45    15   python\n",
            &["lists processes"],
        ),
        refused(
            "American dates",
            "timestamp,clocks.sm\n11/15/2026 08:00:00,1980\n",
            &["line 2 has \"11/15/2026 08:00:00\"", "15.11.2026"],
        ),
        refused(
            "thousands or decimals",
            "timestamp;clocks.sm\n2026/11/15 08:00:00;1,440\n",
            &["line 2", "may have a decimal comma or a separator of thousands"],
        ),
    ]);
}

#[test]
fn all_causes_are_named_once() {
    let rows = |bits: fn(u32) -> (u32, u32)| {
        log(LOAD, 100, 1000, move |i| {
            let (mhz, bits) = bits(i);
            format!("99 %, {mhz} MHz, 0x{bits:x}")
        })
    };
    let one_after_the_other = rows(|i| match i {
        0..20 => (1980, 0),
        20..60 => (1440, 0x4),
        _ => (1200, 0x20),
    });
    check(vec![
        case(
            "two causes, one after the other",
            one_after_the_other,
            &[
                "thermally throttled: 40 % of the time, SM 1980 → 1200 MHz",
                "and power-capped: 40 % of the time",
            ],
            &[],
        ),
        case(
            "equal times and clocks, one after the other",
            rows(|i| {
                (
                    if i < 20 { 1980 } else { 1200 },
                    if i < 20 { 0 } else { [0x4, 0x20][(i / 40) as usize % 2] },
                )
            }),
            &["is thermally throttled: 40 %", "about 16 % slower, and power-capped: 40 %"],
            &["power-capped and thermally"],
        ),
        case(
            "one within the other",
            rows(|i| {
                (if i < 20 { 1980 } else { 1200 }, if i < 20 { 0 } else { [0x4, 0x24][(i / 60) as usize] })
            }),
            &[
                "The GPU is power-capped: 80 % of the time, SM 1980 → 1200 MHz, about 32 % slower, and thermally throttled: 40 % of the time.",
            ],
            &[],
        ),
        case(
            "two causes at once",
            rows(|i| if i < 20 { (1980, 0) } else { (1200, 0x24) }),
            &["The GPU is power-capped and thermally throttled: 80 % of the time, SM 1980 → 1200 MHz"],
            &[],
        ),
        case(
            "the power brake is a hardware slowdown",
            rows(|i| if i < 20 { (1980, 0) } else { (990, 0x88) }),
            &["The GPU is throttled by power brake: 80 %"],
            &["hardware slowdown"],
        ),
        case(
            "so is the thermal one",
            rows(|i| if i < 20 { (1980, 0) } else { (990, 0x48) }),
            &["The GPU is thermally throttled: 80 %"],
            &["\nhardware slowdown"],
        ),
        case(
            "a counter of both thermal limits",
            log(&format!("{LOAD}, viol_thermal_ns"), 100, 1000, |i| match i < 20 {
                true => "99 %, 1980 MHz, 0x0, 0".to_owned(),
                false => format!("99 %, 990 MHz, 0x48, {}", u64::from(i - 20) * 1_000_000_000),
            }),
            &["The GPU is thermally throttled: 80 % of the time, SM 1980 → 990 MHz", "counter"],
            &["\nthermal slowdown", "and thermally"],
        ),
    ]);
}

#[test]
fn a_cost_is_relative_to_a_clock_that_the_gpu_reaches() {
    let of = |name: &str, mhz: u32| {
        log(&format!("name, {LOAD}, clocks.max.sm [MHz]"), 60, 1000, |_| {
            format!("{name}, 99 %, {mhz} MHz, 0x4, 3105 MHz")
        })
    };
    check(vec![
        // 1 − 2400/2520 and 1 − 2400/3105.
        case(
            "between stated clock and maximum",
            of("NVIDIA GeForce RTX 4090", 2400),
            &[
                "SM 2520–3105 → 2400 MHz, 4.8 to 23 % slower",
                "between the vendor's stated clock (2520 MHz) and the maximum",
            ],
            &["about"],
        ),
        case(
            "above the stated clock",
            of("NVIDIA GeForce RTX 4090", 2700),
            &["at most 13 % slower"],
            &["about"],
        ),
        case(
            "no stated clock known",
            of("NVIDIA Unheard", 2515),
            &["SM at most 3105 → 2515 MHz, at most 19 % slower"],
            &["about 19 %"],
        ),
    ]);
}

#[test]
fn a_phase_with_few_samples_is_not_judged() {
    let header = format!("{LOAD}, phase");
    let text = log(&header, 60, 1000, |i| match i {
        30 => "99 %, 1980 MHz, 0x0, prefill".to_owned(),
        _ => format!(
            "99 %, {} MHz, 0x{:x}, decode",
            if i < 20 { 1980 } else { 1440 },
            if i < 20 { 0 } else { 4 }
        ),
    });
    check(vec![case(
        "one sample in prefill",
        text,
        &["Decode is power-capped", "too few samples in prefill (1) to judge"],
        &["prefill is not affected"],
    )]);
}
