package fs

import (
	"bytes"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// The requests that are counted, in the order of opNames.
const (
	opLookup = iota
	opGetattr
	opOpen
	opRead
	opWrite
	opFallocate
	opFsync
	opLseek
	opReaddir
	ops
)

var opNames = [ops]string{"lookup", "getattr", "open", "read", "write", "fallocate", "fsync", "lseek", "readdir"}

// metrics is the file .hashfs/metrics, in Prometheus' text format. Which series
// there are is settled at the mount, and so is the size of the file.
type metrics struct {
	m        *mount
	size     int // bytes
	registry *prometheus.Registry

	requests, failures [ops]atomic.Int64
	handles            atomic.Int64 // open virtual files
}

var (
	descVersion   = desc("build_info", "What is running; the value is 1.", "version")
	descRequests  = desc("requests_total", "Requests of the kernel that were answered.", "op")
	descFailures  = desc("request_errors_total", "Requests that were answered with an error other than ENOENT.", "op")
	descHandles   = desc("open_virtual_files", "Open files other than images.")
	descBytes     = desc("cache_bytes", "Digests in memory.")
	descLimit     = desc("cache_limit_bytes", "Digests that may be in memory.")
	descHits      = desc("cache_hits_total", "Digests that were found in the cache.")
	descMisses    = desc("cache_misses_total", "Digests that had to be computed.")
	descEvictions = desc("cache_evictions_total", "Pages of digests that made way for others.")
	descSize      = desc("image_size_bytes", "Length of the image.", "image")
	descGen       = desc("image_generation", "A number that moves with every change of the image.", "image")
	descBlocks    = desc("image_blocks", "Blocks of the image by what is known of them.", "image", "state")
	descNeeded    = desc("image_cache_needed_bytes", "What all digests of the image would take in memory.", "image")
	descErrors    = desc("image_read_errors_total", "Reads of the image that failed.", "image")
	descHashed    = desc("image_hashed_bytes_total", "Bytes of the image that were read and hashed.", "image")
	descWork      = desc("image_hashing_bytes", "Bytes that digests in progress have still to go through.", "image")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hashfs_"+name, help, labels, nil)
}

// newMetrics registers with a registry of its own, so that nothing is shared
// with another mount in the process.
func newMetrics(m *mount) (*metrics, error) {
	ms := &metrics{m: m, registry: prometheus.NewRegistry()}
	if err := ms.registry.Register(ms); err != nil {
		return nil, err
	}
	b, err := ms.text()
	if err != nil {
		return nil, err
	}
	ms.size = metricsBound(b)
	return ms, nil
}

// metricsBound returns how long b can become with other values in it: no
// float64 is written longer than -1.7976931348623157e+308.
func metricsBound(b []byte) int {
	const longest = 24
	size := len("\n")
	for line := range bytes.Lines(b) {
		size += len(line)
		if line[0] != '#' {
			size += longest - len(bytes.TrimSpace(line[bytes.LastIndexByte(line, ' '):]))
		}
	}
	return size
}

// Describe sends the metrics' descriptions.
func (ms *metrics) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(ms, ch)
}

// Collect sends the values as they are now. It asks no source for anything.
func (ms *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descVersion, 1, ms.m.o.Version)
	gauge(descHandles, ms.handles.Load())
	for op, name := range opNames {
		counter(descRequests, ms.requests[op].Load(), name)
		counter(descFailures, ms.failures[op].Load(), name)
	}
	if c := ms.m.o.Cache; c != nil {
		s := c.Stats()
		gauge(descBytes, s.Bytes)
		gauge(descLimit, s.Limit)
		counter(descHits, s.Hits)
		counter(descMisses, s.Misses)
		counter(descEvictions, s.Evictions)
	}
	for _, d := range ms.m.images {
		s := d.Image.Image.Status()
		gauge(descSize, s.Size, d.Name)
		gauge(descGen, int64(s.Generation), d.Name)
		gauge(descBlocks, s.BlockCounts.Unknown, d.Name, "unknown")
		gauge(descBlocks, s.BlockCounts.Zero, d.Name, "zero")
		gauge(descBlocks, s.BlockCounts.Data, d.Name, "data")
		gauge(descBlocks, s.BlockCounts.Failed, d.Name, "failed")
		gauge(descNeeded, s.CacheNeeded, d.Name)
		counter(descErrors, s.ReadErrors, d.Name)
		counter(descHashed, s.HashedBytes, d.Name)
		var left int64
		for _, w := range s.Work {
			left += w.Total - w.Done
		}
		gauge(descWork, left, d.Name)
	}
}

// text returns the metrics without padding.
func (ms *metrics) text() ([]byte, error) {
	families, err := ms.registry.Gather()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&b, family); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// render returns the file: the text, and a line of spaces, since a parser need
// not allow any after a value.
func (ms *metrics) render() ([]byte, error) {
	b, err := ms.text()
	if err != nil {
		return nil, err
	}
	return pad(append(b, '\n'), ms.size)
}
