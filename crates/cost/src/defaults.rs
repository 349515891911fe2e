//! Fields of a recorded shape that have a default are not written.

pub fn yes() -> bool {
    true
}

pub fn is_true(value: &bool) -> bool {
    *value
}

pub fn is_false(value: &bool) -> bool {
    !value
}

pub fn is_zero(value: &u64) -> bool {
    *value == 0
}
