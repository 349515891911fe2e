//! What vision encoders made of images, over the measured requests.

use crate::event::ImagesEncoded;

/// Images and the positions that they fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VisionTally {
    pub requests: u64,
    pub images: u64,
    /// Positions of prompts.
    pub tokens: u64,
    /// Where they are known of all requests.
    patches: Option<u64>,
}

impl VisionTally {
    pub(super) fn add(&mut self, encoded: &ImagesEncoded) {
        self.patches = match (self.requests, self.patches, encoded.patches) {
            (0, _, patches) => patches,
            (_, Some(sum), Some(patches)) => Some(sum.saturating_add(patches)),
            _ => None,
        };
        self.requests += 1;
        self.images = self.images.saturating_add(u64::from(encoded.images));
        self.tokens = self.tokens.saturating_add(u64::from(encoded.tokens));
    }

    /// Positions of a mean image.
    pub fn tokens_per_image(&self) -> Option<f64> {
        (self.images > 0).then(|| self.tokens as f64 / self.images as f64)
    }

    pub fn patches_per_image(&self) -> Option<f64> {
        (self.images > 0).then_some(self.patches? as f64 / self.images as f64)
    }

    pub fn patches(&self) -> Option<u64> {
        self.patches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_known_where_all_requests_report_them() {
        let encoded = |patches| ImagesEncoded { request: 0, images: 2, tokens: 10, patches, device_ns: None };
        let mut tally = VisionTally::default();
        assert_eq!(tally.tokens_per_image(), None);
        tally.add(&encoded(Some(40)));
        tally.add(&encoded(Some(20)));
        assert_eq!((tally.tokens_per_image(), tally.patches_per_image()), (Some(5.0), Some(15.0)));
        tally.add(&encoded(None));
        assert_eq!(tally.patches(), None);
    }
}
