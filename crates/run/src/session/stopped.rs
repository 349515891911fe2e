//! The position of a stop of the process among its events.

use std::time::Duration;

use llmprof_event::Stamp;

/// Other threads may continue this long before the one that detects the stop.
const NOTICED_WITHIN: Duration = Duration::from_millis(100);

/// The position of a stop of the process among events with these `times`: the index of the next event, and the
/// interval. It is the longest pause that ended shortly before the stop was detected.
pub(super) fn between(before: Stamp, times: &[Stamp], continued: Stamp) -> (usize, Stamp, Stamp) {
    let at = times.partition_point(|t| *t < continued);
    let last = |i: usize| times[..i].iter().copied().fold(before, Stamp::max);
    let end = continued.max(last(at));
    let mut found = (at, last(at), end);
    for i in (0..at).rev().take_while(|i| end.since(times[*i]) <= NOTICED_WITHIN) {
        let (since, t) = (last(i), times[i].max(last(i)));
        if t.since(since) > found.2.since(found.1) {
            found = (i, since, t);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_the_longest_pause_before_it_was_noticed() {
        let ms = |ms: u64| Stamp(ms * 1_000_000);
        let between = |before: u64, times: &[u64], continued: u64| {
            let times: Vec<Stamp> = times.iter().map(|t| ms(*t)).collect();
            let (at, since, t) = between(ms(before), &times, ms(continued));
            (at, since.0 / 1_000_000, t.0 / 1_000_000)
        };
        for (case, before, times, continued, expected) in [
            ("noticed before any other event", 100, &[104, 4200, 4204][..], 4198, (1, 104, 4198)),
            ("another thread was first", 100, &[104, 4200, 4204], 4206, (1, 104, 4200)),
            ("all events came before it", 4104, &[4100, 4200], 8200, (2, 4200, 8200)),
            ("nothing happened since", 100, &[], 4200, (0, 100, 4200)),
            ("the first event is of another thread", 100, &[4200, 4201], 4202, (0, 100, 4200)),
            ("an earlier pause has another reason", 100, &[4000, 4150, 4300], 4299, (2, 4150, 4299)),
            ("time does not run backwards", 5000, &[4900, 5100], 4950, (1, 5000, 5000)),
        ] {
            assert_eq!(between(before, times, continued), expected, "{case}");
        }
    }
}
