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

// Mapping says which series the metrics of the history continue.
type Mapping interface {
	// Names returns the names of all series.
	Names() []string
	// Each calls add for each series that a metric of a workload continues, if its name is
	// wanted.
	Each(w history.Workload, m history.Metric, wants func(name string) bool, add func(history.Series))
}

// Deps are the collaborators of a Store.
type Deps struct {
	Recent  storage.Queryable // the series at full rate
	Minutes *history.Store
	Series  Mapping
}

// Store is a storage.Queryable with the series of another one, and their past.
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

// labelsOf returns the labels of a series.
func (s *Store) labelsOf(b *labels.Builder, x *history.Series) labels.Labels {
	b.Reset(labels.EmptyLabels())
	for i := 0; i+1 < len(x.Labels); i += 2 {
		b.Set(x.Labels[i], x.Labels[i+1])
	}
	b.Set(model.MetricNameLabel, x.Name).Set("job", s.cfg.Job).Set("instance", s.cfg.Instance)
	return b.Labels()
}
