//! Limits in detail, and what to do about them.

use super::{Evidence, Limit};
use crate::{
    base::units::percent,
    event::reasons::{HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, SW_POWER_CAP, SW_THERMAL, SYNC_BOOST},
};

/// Power limits closer together are equal, in watts.
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
        Limit::Bit(SW_THERMAL | HW_THERMAL | HW_SLOWDOWN) => {
            let (temp, slowdown) = (evidence.temp_c?, info.slowdown_temp_c?);
            let margin = f64::from(slowdown) - temp;
            Some(match margin > 0.0 {
                true => format!(
                    "It is at {temp:.0} °C, {margin:.0} °C below its slowdown temperature ({slowdown} °C)."
                ),
                false => format!("It is at {temp:.0} °C; it slows down at {slowdown} °C."),
            })
        }
        _ => None,
    }
}

pub(super) fn remedy(evidence: &Evidence<'_>, limit: Limit) -> Option<String> {
    let info = evidence.info;
    let index = info.index;
    let text = match limit {
        Limit::Bit(SW_POWER_CAP) => match (info.power_limit_w, info.power_limit_max_w) {
            (Some(limit), Some(max)) if limit < max - SAME_LIMIT_W => {
                return Some(format!(
                    "`sudo nvidia-smi -i {index} -pl {max:.0}` raises the power limit from {limit:.0} W to the GPU's \
                     maximum; check the power supply and the cooling first"
                ));
            }
            (Some(_), Some(_)) => {
                "The limit cannot be raised. A smaller type (fp8, int8, int4) uses less power per token; a lower clock would \
                 not be slower than the cap"
            }
            _ => {
                return Some(format!(
                    "`nvidia-smi -i {index} -q -d POWER` shows the range of the power limit"
                ));
            }
        },
        Limit::Bit(SW_THERMAL | HW_THERMAL) => {
            let fan = match evidence.fan_pct {
                Some(pct) if pct < 90.0 => {
                    format!("The fan is at {}: a steeper fan curve would help.", percent(pct))
                }
                Some(pct) => format!("The fan is already at {}.", percent(pct)),
                None => "No fan speed was read: the server's airflow may cool it.".to_owned(),
            };
            return Some(format!(
                "Improve the cooling: airflow, dust, room temperature, distance to the next GPU. {fan} A lower power limit \
                 (`nvidia-smi -pl`) keeps the clock steadier than thermal throttling"
            ));
        }
        Limit::Bit(HW_POWER_BRAKE) => {
            "The server asserts the power brake: check the power supply, its cables and the server's power policy"
        }
        Limit::Bit(HW_SLOWDOWN) => {
            "Check the power cables and the temperature: the hardware halves the clock to protect itself"
        }
        Limit::Bit(SYNC_BOOST) => {
            "Another GPU in its sync boost group sets the clock: remove this GPU from the group"
        }
        Limit::Board => "The board's regulators are at their limit: check the power supply and the cooling",
        Limit::Reliability => "The voltage is at its limit: a lower clock would be as fast",
        Limit::Bit(_) => return None,
    };
    Some(text.to_owned())
}
