//! Any bytes are read as a telemetry log or rejected; what is read is diagnosed without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    analysis::throttle::{Evidence, diagnose},
    telemetry::log::read,
};

const HEADER: &str = "timestamp,index,phase,utilization.gpu [%],clocks.sm [MHz],clocks_event_reasons.active,power.draw [W],\
                      viol_power_ns,energy_mj,gpm_any_tensor,gpm_dram_bw\n";

fuzz_target!(|rows: &[u8]| {
    let _ = read("any", rows);
    let Ok(log) = read("rows", [HEADER.as_bytes(), rows].concat().as_slice()) else { return };
    for gpu in &log.gpus {
        let _ = diagnose(&Evidence {
            info: &gpu.info,
            ledger: &gpu.ledger,
            workload: None,
            tpot_ms: None,
            device_share: None,
            fan_pct: None,
            pcie_width: None,
            others: &[],
            lost: gpu.lost.as_ref(),
            began: log.began,
        });
    }
});
