package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// info is what info.json holds.
type info struct {
	Name         string   `json:"name"`
	Source       string   `json:"source"`
	Format       string   `json:"format"`
	Size         int64    `json:"size"`
	BlockSize    int64    `json:"block_size"`
	Digest       string   `json:"digest"`
	Construction string   `json:"construction"`
	Algorithms   []string `json:"algorithms"`
	Writable     bool     `json:"writable"`
	CacheMode    string   `json:"cache_mode"`
	Epoch        string   `json:"epoch"`
	Generation   uint64   `json:"generation"`
	Blocks       struct {
		Total, Unknown, Zero, Data, Failed int64
	} `json:"blocks"`
	Cache struct {
		Bytes, Limit, Needed, Hits, Misses, Evictions int64
	} `json:"cache"`
	Work []struct {
		File        string
		Done, Total int64
		Started     time.Time
	} `json:"work"`
	LastError *struct {
		Offset, Length int64
		Message        string
		Time           time.Time
	} `json:"last_error"`
	Bad []int64 `json:"bad"`
}

// info returns the info.json of an image.
func (m *mounted) info(image string) info {
	m.t.Helper()
	var i info
	if err := json.Unmarshal([]byte(m.read(image, "info.json")), &i); err != nil {
		m.t.Fatalf("info.json: %v", err)
	}
	return i
}

// metrics returns what .hashfs/metrics holds, as Prometheus parses it.
func (m *mounted) metrics() map[string]*dto.MetricFamily {
	m.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(m.read(".hashfs", "metrics")))
	if err != nil {
		m.t.Fatalf("metrics: %v", err)
	}
	return families
}

// metric returns the value of one series, written as name{label="value"} with
// the labels in the order of their names.
func (m *mounted) metric(series string) float64 {
	m.t.Helper()
	for name, family := range m.metrics() {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if series == name && len(labels) == 0 || series == name+"{"+strings.Join(labels, ",")+"}" {
				return metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	m.t.Fatalf("metrics: no %s", series)
	return 0
}
