//! Who is let in.

use super::membership::RankState;
use super::message::{Hello, PROTOCOL_VERSION, ServerFrame};
use super::peer::{PeerId, Standing};
use super::secret::{Claim, Proof, Side, random};
use super::server_state::ServerState;
use std::time::Instant;

impl ServerState {
    /// A stranger says who it is. It is asked to show that it has the secret, or refused.
    pub(super) fn greet(&mut self, id: PeerId, hello: Hello, since: Instant, now: Instant) {
        if let Err(reason) = self.check_hello(&hello) {
            return self.refuse(id, reason, now);
        }
        let store_nonce = match random() {
            Ok(nonce) => nonce,
            Err(reason) => return self.refuse(id, reason, now),
        };
        let Hello { rank, world_size, nonce, .. } = hello;
        let claim = Claim { rank, world_size, rank_nonce: nonce, store_nonce };
        if let Some(peer) = self.peer(id) {
            peer.standing = Standing::Claimed { claim, since };
        }
        self.tell(id, &ServerFrame::Challenge { has_secret: self.rules.secret.is_some(), nonce: store_nonce });
    }

    /// A stranger shows that it has the secret. From then on it is the rank that it says it is.
    pub(super) fn admit(&mut self, id: PeerId, claim: Claim, proof: &Proof, now: Instant) {
        let secret = self.rules.secret.as_ref();
        if !claim.holds(proof, Side::Rank, secret) {
            let reason = format!("rank {} has another secret than the store", claim.rank);
            return self.refuse(id, reason, now);
        }
        // Another may have come in between.
        if let Err(reason) = self.check_rank(claim.rank) {
            return self.refuse(id, reason, now);
        }
        let welcome = ServerFrame::Welcome {
            proof: claim.prove(Side::Store, secret),
            heartbeat_ms: millis(self.rules.heartbeat),
            silence_ms: millis(self.rules.silence),
            holder: self.rules.holder,
        };
        self.promote(id, claim.rank);
        self.membership.arrive(claim.rank);
        self.tell(id, &welcome);
        self.tell_joining();
    }

    fn check_hello(&self, hello: &Hello) -> Result<(), String> {
        let Hello { version, rank, world_size, has_secret, .. } = *hello;
        if version != PROTOCOL_VERSION {
            return Err(format!(
                "rank {rank} speaks version {version} of the protocol, the store version {PROTOCOL_VERSION}; \
                 use the same bucketeer on all ranks"
            ));
        }
        if world_size != self.rules.world_size {
            return Err(format!(
                "rank {rank} has world size {world_size}, the store {}; they must agree",
                self.rules.world_size
            ));
        }
        match (has_secret, self.rules.secret.is_some()) {
            (false, true) => {
                return Err(format!("rank {rank} has no secret, the store has one; set BUCKETEER_SECRET on all ranks"));
            }
            (true, false) => {
                return Err(format!("rank {rank} has a secret, the store has none; set BUCKETEER_SECRET on all ranks"));
            }
            _ => {}
        }
        self.check_rank(rank)
    }

    fn check_rank(&self, rank: u32) -> Result<(), String> {
        match self.membership.state_of(rank) {
            Some(RankState::Empty) => Ok(()),
            Some(RankState::Here) => Err(format!("rank {rank} is there already; each process needs a rank of its own")),
            Some(RankState::Gone(fate)) => Err(format!("rank {rank} was there and {fate}; a rank cannot come back")),
            None => Err(format!("there is no rank {rank}: the world has {}, from 0", self.membership.world_size())),
        }
    }

    fn refuse(&mut self, id: PeerId, reason: String, now: Instant) {
        let Some(peer) = self.peer(id) else { return };
        let text = format!("{}: {reason}", peer.ip);
        self.tell(id, &ServerFrame::Refused(reason));
        self.membership.refuse(text);
        self.send_off(id, now);
    }
}

fn millis(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
