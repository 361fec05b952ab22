// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// lists serves requests for a metric of all pods of a selector, as a
// HorizontalPodAutoscaler sends them. It writes the same bytes as the library's
// encoders, but without an object per pod. next serves all other requests, and those
// that fail.
//
// The generic API server's filters run before it: a request is already authenticated and
// authorized, and has a slot. The response is not compressed. Compression
// would take longer than all the rest, and the client is the API server of the same
// cluster.
type lists struct {
	provider *Provider
	next     http.Handler
	byAPI    map[string]http.HandlerFunc // instrumented serve, by API version
	bodies   sync.Pool                   // of *[]byte
}

func newLists(p *Provider, next http.Handler) *lists {
	l := &lists{provider: p, next: next, byAPI: map[string]http.HandlerFunc{}}
	l.bodies.New = func() any { return new([]byte) }
	for _, v := range versions {
		// The library counts its own requests with the same labels.
		l.byAPI[v.version] = endpointmetrics.InstrumentHandlerFunc(
			"LIST", custom_metrics.GroupName, v.version, "*", "*", "resource", "custom-metrics", false, "", l.serve)
	}
	return l
}

// ServeHTTP implements http.Handler.
func (l *lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if info, ok := request.RequestInfoFrom(r.Context()); ok && isPodList(info) && r.Method == http.MethodGet {
		if serve := l.byAPI[info.APIVersion]; serve != nil && formatOf(r) != nil {
			if _, err := selectorOfQuery(r.URL.RawQuery); err == nil {
				serve(w, r)
				return
			}
		}
	}
	l.next.ServeHTTP(w, r)
}

// isPodList reports whether a request is for a metric of all pods of a namespace.
func isPodList(info *request.RequestInfo) bool {
	return info.IsResourceRequest && info.APIGroup == custom_metrics.GroupName && info.Namespace != "" &&
		len(info.Parts) == 3 && info.Resource == podsResource.Resource && info.Name == "*" && info.Subresource != ""
}

// selectorOfQuery returns the label selector of a query. It fails if the query has
// other parameters.
func selectorOfQuery(raw string) (labels.Selector, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, err
	}
	for key, values := range query {
		if len(values) != 1 || key != "labelSelector" && (key != "metricLabelSelector" || values[0] != "") {
			return nil, errOtherQuery
		}
	}
	return policy.ParseSelector(query.Get("labelSelector"))
}

var errOtherQuery = constError("the query has more than a label selector")

type constError string

func (e constError) Error() string { return string(e) }

// formatOf returns the encoder for the response to r; nil: the library writes it.
func formatOf(r *http.Request) newEncoder {
	mediaType, info, err := negotiation.NegotiateOutputMediaType(r, apiserver.Codecs, negotiation.DefaultEndpointRestrictions)
	if err != nil || mediaType.Convert != nil {
		return nil
	}
	switch {
	case info.MediaType == runtime.ContentTypeJSON && info.Serializer != info.PrettySerializer:
		return newJSONList
	case info.MediaType == runtime.ContentTypeProtobuf:
		return newProtoList
	}
	return nil
}

// newEncoder begins a list after the bytes of a buffer.
type newEncoder func(buf []byte, version string, q *query) listEncoder

// listEncoder writes a list of values.
type listEncoder interface {
	add(pod string, at time.Time, v float64)
	// end returns the whole list and its media type.
	end() (body []byte, mediaType string)
}

// serve serves a request that ServeHTTP has accepted.
func (l *lists) serve(w http.ResponseWriter, r *http.Request) {
	info, _ := request.RequestInfoFrom(r.Context())
	selector, err := selectorOfQuery(r.URL.RawQuery)
	if err != nil {
		l.next.ServeHTTP(w, r)
		return
	}
	s, err := l.provider.parse(info.Subresource, nil)
	if err != nil || !s.isPlain() {
		l.next.ServeHTTP(w, r)
		return
	}
	q := l.provider.query(info.Namespace, &s)
	buf := l.bodies.Get().(*[]byte)
	list := formatOf(r)((*buf)[:0], info.APIVersion, q)
	if err := q.each(selector, list.add); err != nil {
		l.bodies.Put(buf)
		l.next.ServeHTTP(w, r)
		return
	}
	body, mediaType := list.end()
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	// A request that has timed out may still read the buffer of a failed write.
	if _, err := w.Write(body); err == nil {
		*buf = body
		l.bodies.Put(buf)
	}
}

// jsonList writes a MetricValueList as encoding/json does.
type jsonList struct {
	buf           []byte
	first         int    // the offset of the first item
	before, after string // the text before and after a pod's name, up to the time
	last          string // the text between the time and the value
	tail          string // the text after the value

	second int64  // of stamp, Unix time
	stamp  []byte // the JSON of a time, cached because a node's pods have the same time
}

func newJSONList(buf []byte, version string, q *query) listEncoder {
	buf = append(buf, `{"kind":"MetricValueList","apiVersion":"`+custom_metrics.GroupName+"/"+version+`","metadata":{},"items":[`...)
	metric := string(appendString(nil, q.metric))
	l := &jsonList{
		buf: buf, first: len(buf), second: -1 << 63,
		before: `{"describedObject":{"kind":"Pod","namespace":` + string(appendString(nil, q.namespace)) + `,"name":`,
		after:  `,"apiVersion":"v1"},"metric":{"name":` + metric + `,"selector":null},"timestamp":`,
		last:   `,"value":"`, tail: `"},`,
	}
	window := `,"windowSeconds":`
	if version == "v1beta1" {
		window = `,"window":`
		l.after = `,"apiVersion":"v1"},"metricName":` + metric + `,"timestamp":`
		l.tail = `","selector":null},`
	}
	if q.window != nil {
		l.last = window + strconv.FormatInt(*q.window, 10) + l.last
	}
	return l
}

func (l *jsonList) add(pod string, at time.Time, v float64) {
	b := append(l.buf, l.before...)
	b = appendString(b, pod)
	b = append(b, l.after...)
	if second := at.Unix(); second != l.second || l.stamp == nil {
		l.second = second
		l.stamp, _ = metav1.Time{Time: at}.MarshalJSON() // fails only after the year 9999
	}
	b = append(b, l.stamp...)
	b = append(b, l.last...)
	b = appendQuantity(b, v)
	l.buf = append(b, l.tail...)
}

func (l *jsonList) end() (body []byte, mediaType string) {
	b := l.buf
	if len(b) > l.first {
		b = b[:len(b)-1] // the last item's comma
	}
	return append(b, "]}\n"...), runtime.ContentTypeJSON
}

// appendString appends s as a JSON string. Names of objects need no escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && c != '-' && c != '.' && c != '_' && c != ':' {
			escaped, _ := json.Marshal(s) // never fails for a string
			return append(b, escaped...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
