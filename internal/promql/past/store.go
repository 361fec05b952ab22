// SPDX-License-Identifier: Apache-2.0

package past

import (
	"cmp"
	"fmt"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/gpupilot/gpupilot/internal/window/history"
)

// DefaultLookback is that of Prometheus.
const DefaultLookback = 5 * time.Minute

// Config is the configuration of a Store. Zero values take the defaults.
type Config struct {
	// Lookback is that of the engine: an instant query reads exactly this time.
	// DefaultLookback by default.
	Lookback time.Duration
	// Job and Instance are the labels of the series in Deps.Recent.
	Job, Instance string
}

// Deps are the collaborators of a Store.
type Deps struct {
	Recent   storage.Queryable // the series at full rate
	Minutes  *history.Store
	Families []history.Family // that Minutes has
}

// Store is a storage.Queryable: it has the series of Deps.Recent and, for the time before
// them, the minutes of the history.
type Store struct {
	cfg  Config
	deps Deps
}

var _ storage.Queryable = (*Store)(nil)

// New returns a store.
func New(cfg Config, deps Deps) *Store {
	cfg.Lookback = cmp.Or(cfg.Lookback, DefaultLookback)
	return &Store{cfg: cfg, deps: deps}
}

// Querier returns a querier of samples within [mint, maxt], in ms since 1970.
func (s *Store) Querier(mint, maxt int64) (storage.Querier, error) {
	recent, err := s.deps.Recent.Querier(mint, maxt)
	if err != nil {
		return nil, fmt.Errorf("open the windows: %w", err)
	}
	return &querier{Querier: recent, s: s, mint: mint, maxt: maxt}, nil
}

// labelsOf returns the labels of the series of a workload's metric, without a statistic.
// Those that say whose it is count, whatever the metric has.
func (s *Store) labelsOf(b *labels.Builder, w history.Workload, m history.Metric) {
	b.Reset(labels.EmptyLabels())
	for name, value := range m.Labels() {
		b.Set(name, value)
	}
	of := w.Labels()
	for i := 0; i < len(of); i += 2 {
		b.Set(of[i], of[i+1])
	}
	b.Set(model.MetricNameLabel, m.Name()).Set("job", s.cfg.Job).Set("instance", s.cfg.Instance)
}
