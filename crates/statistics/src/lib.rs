#![doc = include_str!("../README.md")]

pub mod binomial;
pub mod blocks;
pub mod bootstrap;
pub mod interval;
pub mod noise;
pub mod percentile;
pub mod ratio;
