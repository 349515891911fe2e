//! Line tables of code objects. The tables are untrusted: every sum is checked or wraps.

use crate::layout::Table;

/// The line of the instruction at `at` (bytes from the start of the code), or `first` if the table does not say.
pub fn line_at(kind: Table, table: &[u8], first: i32, at: i64) -> u32 {
    let line = match kind {
        Table::Lnotab => lnotab(table, first, at),
        Table::Deltas => deltas(table, first, at),
        Table::Locations => locations(table, first, at),
    };
    u32::try_from(line).unwrap_or(0)
}

fn lnotab(table: &[u8], first: i32, at: i64) -> i32 {
    let (mut line, mut address) = (first, 0);
    for pair in table.chunks_exact(2) {
        address += i64::from(pair[0]);
        if address > at {
            break;
        }
        line = line.wrapping_add(i32::from(pair[1] as i8));
    }
    line
}

fn deltas(table: &[u8], first: i32, at: i64) -> i32 {
    let (mut line, mut address) = (first, 0);
    for pair in table.chunks_exact(2) {
        address += i64::from(pair[0]);
        let has_line = pair[1] as i8 != -128;
        if has_line {
            line = line.wrapping_add(i32::from(pair[1] as i8));
        }
        if address > at {
            break;
        }
    }
    line
}

fn locations(table: &[u8], first: i32, at: i64) -> i32 {
    let (mut line, mut address) = (first, 0);
    let mut rest = table;
    while let Some((&head, tail)) = rest.split_first() {
        rest = tail;
        address += (i64::from(head & 7) + 1) * 2;
        line = line.wrapping_add(location_delta(head >> 3 & 15, &mut rest));
        if address > at {
            break;
        }
    }
    line
}

/// Reads one entry's columns and returns by how much the line changes.
fn location_delta(code: u8, rest: &mut &[u8]) -> i32 {
    match code {
        15 => 0,
        14 => {
            let delta = signed_varint(rest);
            (0..3).for_each(|_| _ = varint(rest));
            delta
        }
        13 => signed_varint(rest),
        10..=12 => {
            skip(rest, 2);
            i32::from(code) - 10
        }
        _ => {
            skip(rest, 1);
            0
        }
    }
}

fn skip(rest: &mut &[u8], count: usize) {
    *rest = rest.get(count..).unwrap_or_default();
}

fn varint(rest: &mut &[u8]) -> u32 {
    let (mut value, mut shift) = (0u32, 0);
    while let Some((&byte, tail)) = rest.split_first() {
        *rest = tail;
        value |= u32::from(byte & 63).checked_shl(shift).unwrap_or(0);
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

fn signed_varint(rest: &mut &[u8]) -> i32 {
    let value = varint(rest);
    let magnitude = (value >> 1) as i32;
    if value & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_of_a_compiled_function() {
        let table = [240, 3, 1, 1, 1, 242, 2, 3, 1, 17, 240, 12, 0, 7, 11, 217, 4, 11, 136, 66, 134, 75];
        for (range, line) in [(0..2, 0), (2..8, 1), (8..10, 7), (10..30, 8)] {
            for at in range.step_by(2) {
                assert_eq!(line_at(Table::Locations, &table, 1, at), line, "{at}");
            }
        }
    }

    #[test]
    fn garbage_has_a_line_and_does_not_panic() {
        let mut seed = 1u32;
        for length in 0..400 {
            let mut byte = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            };
            let table: Vec<u8> = (0..length).map(|_| byte()).collect();
            for kind in [Table::Lnotab, Table::Deltas, Table::Locations] {
                line_at(kind, &table, i32::MAX - 3, 500);
                line_at(kind, &[255; 64], i32::MIN + 1, i64::MAX);
            }
        }
    }
}
