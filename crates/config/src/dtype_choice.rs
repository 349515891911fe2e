//! `model.dtype`.

use std::{fmt, iter, sync::LazyLock};

use llm_cost::{Dtype, Scheme};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{EnumAccess, Error, VariantAccess, Visitor},
};

/// `model.dtype`, written as the name of one of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DtypeChoice {
    /// The type that suits the device: see `run::dtype`.
    Auto,
    Unquantised(Dtype),
    /// Synthetic weights are quantised.
    Quantised(Scheme),
}

static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| DtypeChoice::all().map(DtypeChoice::name).collect());

impl DtypeChoice {
    fn all() -> impl Iterator<Item = DtypeChoice> {
        let unquantised = Dtype::ALL.iter().copied().map(DtypeChoice::Unquantised);
        let quantised = Scheme::ALL.iter().copied().map(DtypeChoice::Quantised);
        iter::once(DtypeChoice::Auto).chain(unquantised).chain(quantised)
    }

    fn name(self) -> &'static str {
        match self {
            DtypeChoice::Auto => "auto",
            DtypeChoice::Unquantised(dtype) => dtype.name(),
            DtypeChoice::Quantised(scheme) => scheme.name(),
        }
    }

    /// `None` for `auto`, and for quantised weights, whose unquantised parts have a type that suits the device.
    pub fn given(self) -> Option<Dtype> {
        match self {
            DtypeChoice::Unquantised(dtype) => Some(dtype),
            DtypeChoice::Auto | DtypeChoice::Quantised(_) => None,
        }
    }

    /// How synthetic weights are quantised, if they are.
    pub fn scheme(self) -> Option<Scheme> {
        match self {
            DtypeChoice::Quantised(scheme) => Some(scheme),
            DtypeChoice::Auto | DtypeChoice::Unquantised(_) => None,
        }
    }
}

impl Serialize for DtypeChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// As an enum, so that the names are known to completion and to messages.
impl<'de> Deserialize<'de> for DtypeChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DtypeChoice, D::Error> {
        struct ByName;

        impl<'de> Visitor<'de> for ByName {
            type Value = DtypeChoice;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("the name of a type")
            }

            fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<DtypeChoice, A::Error> {
                let (name, value) = access.variant::<String>()?;
                value.unit_variant()?;
                let named = DtypeChoice::all().find(|choice| choice.name() == name);
                named.ok_or_else(|| A::Error::unknown_variant(&name, &NAMES))
            }
        }

        deserializer.deserialize_enum("DtypeChoice", &NAMES, ByName)
    }
}
