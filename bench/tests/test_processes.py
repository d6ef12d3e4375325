import os
import subprocess
import sys

from bench.lib.processes import CpuReading, Sampler, Watched, others_cpu, read_cpu, tree_cpu


def test_others_are_what_the_machine_did_beyond_us():
    before = CpuReading(at=10.0, machine_s=100.0, own_s=5.0)
    after = CpuReading(at=20.0, machine_s=115.0, own_s=15.0)
    assert others_cpu(before, after, cores=2) == 0.25


def test_others_stay_within_a_share():
    start = CpuReading(0.0, 0.0, 0.0)
    assert others_cpu(start, CpuReading(1.0, 1.0, 1.1), cores=1) == 0.0  # clocks tick coarsely
    assert others_cpu(start, CpuReading(1.0, 9.0, 0.0), cores=2) == 1.0
    assert others_cpu(start, start, cores=2) == 0.0


def test_a_child_that_ended_still_counts_as_ours():
    before = read_cpu()
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    assert read_cpu().own_s - before.own_s >= 0.05


def test_a_living_child_is_in_the_tree():
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        tree = tree_cpu(os.getpid())
        child.communicate(b"\n")
    assert {os.getpid(), child.pid} <= set(tree)


def test_a_process_that_is_gone_has_no_tree():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert tree_cpu(child.pid) == {}


def test_a_restarted_service_keeps_what_it_used():
    watched = Watched()
    watched.see(pid=1, cpu_s=2.0, rss=300)
    watched.see(pid=1, cpu_s=3.0, rss=200)
    watched.see(pid=2, cpu_s=0.5, rss=100)
    assert watched.cpu_s == 3.5
    assert watched.peak_rss == 300


def test_the_sampler_outlives_a_process_that_vanishes():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    sampler = Sampler(lambda: {"me": os.getpid(), "gone": child.pid}, every_s=0.01)
    with sampler:
        used = sampler.cpu()
    assert used["me"] > 0.0
    assert "gone" not in used
    assert sampler.seen["me"].peak_rss > 1 << 20
