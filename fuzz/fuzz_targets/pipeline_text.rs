#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bucketeer::fuzzing::pipeline_text(bytes);
});
