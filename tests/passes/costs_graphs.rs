//! Profiles put to real graphs: each has a cost for every group and a time for every call.

use bucketeer::ir::{Graph, Op};
use bucketeer::passes::schedule::{CostError, Profile, Timeline};

/// Says what the texts leave open: values of symbols, and sizes of groups.
fn settle(graph: &mut Graph) {
    for symbol in 0..100 {
        graph.hints.insert(format!("s{symbol}").into(), 8);
    }
    let open: Vec<String> =
        graph.groups().iter().filter(|group| group.size.is_none()).map(|group| group.name.to_string()).collect();
    for name in open {
        graph.intern_group(&name, Some(2));
    }
}

#[test]
fn every_fixture_has_costs_on_one_node() {
    let profile = Profile::named("h100").unwrap();
    let mut open = 0;
    for path in kit::files::fx() {
        for mut graph in kit::files::graphs(&path) {
            if let Err(error) = profile.costs(&graph) {
                assert!(
                    matches!(error, CostError::Size { .. } | CostError::NoSize { .. }),
                    "{}: {error}",
                    path.display()
                );
                open += 1;
                settle(&mut graph);
            }
            let costs = profile.costs(&graph).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            costs.check(&graph).unwrap();
            let timeline = Timeline::of(&graph, &costs).unwrap();
            assert!(timeline.compute_ns > 0 && timeline.makespan_ns >= timeline.compute_ns, "{}", path.display());
            let calls = graph.order().iter().filter(|&&id| matches!(graph.node(id).op, Op::Call(_))).count();
            assert!(costs.compute_ns.len() <= calls, "{}", path.display());
        }
    }
    // Four have symbols and no hints; one has a group that nothing gives a size.
    assert_eq!(open, 5);
}
