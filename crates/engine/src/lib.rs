#![doc = include_str!("../README.md")]

pub mod candle;
pub mod cuda;
pub mod device;
pub mod kv;
mod launch;
pub mod load;
pub mod profile;
mod routing;
pub mod sampling;
pub mod speculation;
pub mod weights;
