//! The generator of the benches against PyTorch's own printer.

use kit::files;

#[path = "../../benches/synthetic.rs"]
mod synthetic;

#[test]
fn synthetic_graphs_equal_those_that_pytorch_printed() {
    let Some(shared) = files::shared() else {
        return;
    };
    for collectives in [8, 40, 200] {
        for (pattern, text) in [("fsdp", synthetic::fsdp(collectives)), ("ddp", synthetic::ddp(collectives))] {
            let path = shared.join(format!("torch/synthetic/{pattern}.K{collectives}.full.txt"));
            let expected = String::from_utf8(files::read(&path)).unwrap();
            assert!(text == expected, "{} differs", path.display());
        }
    }
}
