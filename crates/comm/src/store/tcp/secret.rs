//! The secret that the ranks of a world share, and how one shows that one has it without saying it.

use crate::store::StoreError;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// The variable that holds the secret.
pub const SECRET_VARIABLE: &str = "BUCKETEER_SECRET";

/// Number of bytes of a proof, and of the random number that it answers.
pub(super) const PROOF_BYTES: usize = 32;

pub(super) type Proof = [u8; PROOF_BYTES];

/// What the processes of a world know and others do not. It is never sent, and not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret with this text.
    ///
    /// # Errors
    /// [`StoreError::Environment`] for an empty text: that would be none.
    pub fn new(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            let reason = "is empty; set it to a long random text, or not at all".to_owned();
            return Err(StoreError::Environment { variable: SECRET_VARIABLE.to_owned(), reason });
        }
        Ok(Self(text.to_owned()))
    }

    /// A random secret of 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`StoreError::Environment`] when the system has no random numbers.
    pub fn random() -> Result<Self, StoreError> {
        let number = random().map_err(|reason| StoreError::Environment {
            variable: SECRET_VARIABLE.to_owned(),
            reason: format!("cannot be made up: {reason}"),
        })?;
        Ok(Self(number.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The secret of the environment, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Environment`] for an empty one, or one that is no UTF-8.
    pub fn from_env() -> Result<Option<Self>, StoreError> {
        match std::env::var(SECRET_VARIABLE) {
            Ok(text) => Self::new(&text).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                let reason = "is no UTF-8".to_owned();
                Err(StoreError::Environment { variable: SECRET_VARIABLE.to_owned(), reason })
            }
        }
    }

    /// The text, to hand it to a process.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A random number that is used once.
pub(super) fn random() -> Result<Proof, String> {
    let mut number = [0; PROOF_BYTES];
    getrandom::fill(&mut number).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(number)
}

/// Who shows that it has the secret.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Rank,
    Store,
}

/// What a proof is about: the random numbers of both sides, and who the rank says it is.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub rank: u32,
    pub world_size: u32,
    pub rank_nonce: Proof,
    pub store_nonce: Proof,
}

impl Claim {
    /// The proof that a side has the secret. Without a secret it proves nothing, and is made all the same.
    pub fn prove(&self, side: Side, secret: Option<&Secret>) -> Proof {
        self.mac(side, secret).finalize().into_bytes().into()
    }

    /// Whether a side has the secret. It takes as long for each wrong proof.
    pub fn holds(&self, proof: &Proof, side: Side, secret: Option<&Secret>) -> bool {
        self.mac(side, secret).verify_slice(proof).is_ok()
    }

    fn mac(&self, side: Side, secret: Option<&Secret>) -> Hmac<Sha256> {
        let key = secret.map_or(&[][..], |secret| secret.0.as_bytes());
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(match side {
            Side::Rank => b"bucketeer store: rank",
            Side::Store => b"bucketeer store: store",
        });
        mac.update(&self.rank.to_le_bytes());
        mac.update(&self.world_size.to_le_bytes());
        mac.update(&self.rank_nonce);
        mac.update(&self.store_nonce);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_claim_side_and_secret_alone() {
        let claim = Claim { rank: 1, world_size: 2, rank_nonce: [3; 32], store_nonce: [4; 32] };
        let secret = Secret::new("s").unwrap();
        let proof = claim.prove(Side::Rank, Some(&secret));
        assert!(claim.holds(&proof, Side::Rank, Some(&secret)));
        assert!(!claim.holds(&proof, Side::Store, Some(&secret)));
        assert!(!claim.holds(&proof, Side::Rank, None));
        assert!(!claim.holds(&proof, Side::Rank, Some(&Secret::new("t").unwrap())));
        for other in [
            Claim { rank: 0, ..claim },
            Claim { world_size: 3, ..claim },
            Claim { rank_nonce: [0; 32], ..claim },
            Claim { store_nonce: [0; 32], ..claim },
        ] {
            assert!(!other.holds(&proof, Side::Rank, Some(&secret)));
        }
    }

    #[test]
    fn a_secret_is_not_empty_and_not_shown() {
        assert!(Secret::new("").is_err());
        assert_eq!(format!("{:?}", Secret::new("abc").unwrap()), "Secret(..)");
        let random = Secret::random().unwrap();
        assert_eq!(random.text().len(), 64);
        assert_ne!(random, Secret::random().unwrap());
    }
}
