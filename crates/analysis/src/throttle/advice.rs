//! Limits in detail, and their remedies.

use super::{Evidence, GpuActivity, Limit};
use llmprof_base::units::percent;
use llmprof_event::reasons::{HW_SLOWDOWN, HW_THERMAL, SW_POWER_CAP, SW_THERMAL};

/// Power limits with a smaller difference are equal, in watts.
const SAME_LIMIT_W: f32 = 0.5;

/// The value of the limit, in a sentence.
pub(super) fn describe_limit(evidence: &Evidence<'_>, limit: Limit) -> Option<String> {
    let info = evidence.info;
    match limit {
        Limit::Bit(SW_POWER_CAP) => {
            let limit = info.power_limit_w?;
            Some(match (info.power_limit_max_w, info.power_limit_default_w) {
                (Some(max), _) if limit >= max - SAME_LIMIT_W => {
                    format!("The {limit:.0} W limit is the GPU's maximum.")
                }
                (_, Some(default)) if limit < default - SAME_LIMIT_W => {
                    format!("The limit is {limit:.0} W; the default is {default:.0} W.")
                }
                (Some(max), _) => format!("The limit is {limit:.0} W; it can be raised to {max:.0} W."),
                _ => format!("The limit is {limit:.0} W."),
            })
        }
        // The driver slows down at its own target, below the hardware's slowdown temperature.
        Limit::Bit(SW_THERMAL) => {
            Some(format!("The GPU reached {:.0} °C while it was throttled.", hottest(evidence, limit)?))
        }
        Limit::Bit(HW_THERMAL | HW_SLOWDOWN) => {
            let temp = hottest(evidence, limit)?;
            Some(match info.slowdown_temp_c.filter(|slowdown| temp >= f64::from(*slowdown)) {
                Some(slowdown) => format!("The GPU reached {temp:.0} °C; it slows down at {slowdown} °C."),
                None => format!("The GPU reached {temp:.0} °C while it was throttled."),
            })
        }
        _ => None,
    }
}

/// The highest temperature while the limit was active.
fn hottest(evidence: &Evidence<'_>, limit: Limit) -> Option<f64> {
    let times = GpuActivity::ALL.into_iter().filter_map(|work| evidence.ledger.account(work).limit(limit));
    times.filter_map(|time| time.max_temp_c).reduce(f64::max)
}

/// What to do about a limit, with what is known about this GPU.
pub(super) fn remedy(evidence: &Evidence<'_>, limit: Limit) -> Option<String> {
    let info = evidence.info;
    let index = info.index;
    let general = limit.known()?.remedy;
    Some(match (limit, info.power_limit_w, info.power_limit_max_w) {
        (Limit::Bit(SW_POWER_CAP), Some(limit), Some(max)) if limit < max - SAME_LIMIT_W => format!(
            "`sudo nvidia-smi -i {index} -pl {max:.0}` raises the power limit from {limit:.0} W to the GPU's \
             maximum; check the power supply and the cooling first"
        ),
        (Limit::Bit(SW_POWER_CAP), Some(_), Some(_)) => {
            "The limit cannot be raised. A smaller type (fp8, int8, int4) uses less power per token; a lower clock would \
             not be slower than the cap"
                .to_owned()
        }
        (Limit::Bit(SW_POWER_CAP), ..) => {
            format!("`nvidia-smi -i {index} -q -d POWER` shows the range of the power limit")
        }
        (Limit::Bit(SW_THERMAL | HW_THERMAL), ..) => {
            let fan = match evidence.fan_pct {
                Some(pct) if pct < 90.0 => {
                    format!("The fan is at {}: a steeper fan curve would help.", percent(pct))
                }
                Some(pct) => format!("The fan is already at {}.", percent(pct)),
                None => "No fan speed was read: the server's airflow may cool it.".to_owned(),
            };
            format!(
                "{general}. {fan} A lower power limit (`nvidia-smi -pl`) keeps the clock steadier than thermal throttling"
            )
        }
        _ => general.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::{Ledger, diagnose};
    use llmprof_event::{GpuInfo, GpuSample, Stamp, readings::Reading};

    /// The verdict on a GPU that is at `temp_c` with the reasons in `bits`, and cooler without them.
    fn verdict(bits: u64, temp_c: f64) -> String {
        let mut ledger = Ledger::default();
        for i in 0..200 {
            let (mhz, bits, temp_c) = if i < 100 { (1980.0, 0, 60.0) } else { (1500.0, bits, temp_c) };
            let sample = GpuSample::new(0).with(Reading::GpuUtil, 99.0).with(Reading::SmClock, mhz);
            let sample = sample.with(Reading::Temp, temp_c).with_reasons(bits);
            ledger.sample(Stamp::from_secs_f64(0.1 * f64::from(i)), &sample);
        }
        let info = GpuInfo { slowdown_temp_c: Some(92), ..GpuInfo::default() };
        let evidence = Evidence {
            info: &info,
            ledger: &ledger,
            workload: None,
            tpot_ms: None,
            device_share: None,
            fan_pct: None,
            pcie_width: None,
            others: &[],
            lost: None,
            began: None,
        };
        diagnose(&evidence).unwrap().verdict
    }

    #[test]
    fn a_threshold_is_named_where_it_fits_the_limit() {
        for (bits, temp_c, ends) in [
            (SW_THERMAL, 87.0, "The GPU reached 87 °C while it was throttled."),
            (HW_THERMAL | HW_SLOWDOWN, 93.0, "The GPU reached 93 °C; it slows down at 92 °C."),
            (HW_THERMAL | HW_SLOWDOWN, 87.0, "The GPU reached 87 °C while it was throttled."),
        ] {
            let verdict = verdict(bits, temp_c);
            assert!(verdict.ends_with(ends) && !verdict.contains("below"), "{verdict}");
        }
    }
}
