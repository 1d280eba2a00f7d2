//! What stands for buckets on a device without the feature `nccl`: there are none.

use crate::layout::Layout;
use bucketeer_comm::{Arena, Backend, Buffer, Group};
use std::time::Duration;

/// What was in a slot.
pub enum Memory {}

/// The device of a group.
pub enum OnDevice {}

impl OnDevice {
    pub fn of(_: &dyn Backend, _: &Group) -> Option<Self> {
        None
    }

    pub fn gpu(&self) -> u32 {
        match *self {}
    }

    pub fn arena(&self, _: u64) -> Result<Arena, String> {
        match *self {}
    }

    pub fn zero(&self, _: &Buffer) -> Result<(), String> {
        match *self {}
    }

    pub fn save(&self, _: &Buffer) -> Result<Memory, String> {
        match *self {}
    }

    pub fn restore(&self, _: &Memory, _: &Buffer) -> Result<(), String> {
        match *self {}
    }

    pub fn download(&self, _: &Buffer, _: &mut [u8]) -> Result<(), String> {
        match *self {}
    }

    pub fn move_slots(&self, _: &Layout, _: &Layout, _: Duration) -> Result<(), String> {
        match *self {}
    }

    pub fn follow(&self, _: &Self) -> Result<(), String> {
        match *self {}
    }
}
