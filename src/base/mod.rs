//! What every room may use: units in text, seeded noise, CPU time of a thread. Uses no other room.

pub mod cpu_time;
pub mod noise;
pub mod units;
