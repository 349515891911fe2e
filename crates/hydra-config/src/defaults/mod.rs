//! The defaults list: the files of a configuration, their order and the package of each.

mod entry;
mod list;

pub use list::DefaultsItem;
pub(crate) use list::defaults_list;
