package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	bolt "go.etcd.io/bbolt"
)

// store keeps records in a bucket.
type store interface {
	put(bucket *bolt.Bucket, r *Record) error
	get(bucket *bolt.Bucket, id int64) (Record, error)
	// each calls found with count records, starting at id first.
	each(bucket *bolt.Bucket, first int64, count int, found func(Record)) error
	// balances calls found with the balance of every record, in id order.
	balances(bucket *bolt.Bucket, count int, found func(float64)) error
	setBalance(bucket *bolt.Bucket, id int64, balance float64) error
}

func newStore(strategy string) (store, error) {
	if e, ok := encodings[strategy]; ok {
		return oneValue{e}, nil
	}
	switch strategy {
	case "multikv":
		return multiKV{}, nil
	case "nested":
		return nested{}, nil
	}
	return nil, fmt.Errorf("no strategy is called %q", strategy)
}

func keyOf(id int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) }

func missing(id int64) error { return fmt.Errorf("record %d is not there", id) }

func balanceBytes(balance float64) []byte {
	return binary.LittleEndian.AppendUint64(nil, math.Float64bits(balance))
}

func balanceOf(b []byte) (float64, error) {
	if len(b) != 8 {
		return 0, errDamaged
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
}

// oneValue stores a record in one value.
type oneValue struct{ encoding }

func (s oneValue) put(bucket *bolt.Bucket, r *Record) error {
	b, err := s.encode(r)
	if err != nil {
		return err
	}
	return bucket.Put(keyOf(r.ID), b)
}

func (s oneValue) get(bucket *bolt.Bucket, id int64) (Record, error) {
	b := bucket.Get(keyOf(id))
	if b == nil {
		return Record{}, missing(id)
	}
	return s.decode(b)
}

func (s oneValue) each(bucket *bolt.Bucket, first int64, count int, found func(Record)) error {
	cursor := bucket.Cursor()
	for key, b := cursor.Seek(keyOf(first)); key != nil && count > 0; key, b = cursor.Next() {
		r, err := s.decode(b)
		if err != nil {
			return err
		}
		found(r)
		count--
	}
	return nil
}

func (s oneValue) balances(bucket *bolt.Bucket, _ int, found func(float64)) error {
	return bucket.ForEach(func(_, b []byte) error {
		balance, err := s.balance(b)
		found(balance)
		return err
	})
}

func (s oneValue) setBalance(bucket *bolt.Bucket, id int64, balance float64) error {
	r, err := s.get(bucket, id)
	if err != nil {
		return err
	}
	r.Balance = balance
	return s.put(bucket, &r)
}

// multiKV stores each field under the record id followed by the field name.
type multiKV struct{}

func fieldKey(id int64, name string) []byte { return append(keyOf(id), name...) }

func (multiKV) put(bucket *bolt.Bucket, r *Record) error {
	for at, name := range names {
		if err := bucket.Put(fieldKey(r.ID, name), r.field(at)); err != nil {
			return err
		}
	}
	return nil
}

func (s multiKV) get(bucket *bolt.Bucket, id int64) (r Record, err error) {
	count := 0
	err = s.each(bucket, id, 1, func(found Record) { r = found; count++ })
	if err == nil && (count == 0 || r.ID != id) {
		err = missing(id)
	}
	return r, err
}

func (multiKV) each(bucket *bolt.Bucket, first int64, count int, found func(Record)) error {
	cursor := bucket.Cursor()
	key, b := cursor.Seek(keyOf(first))
	for ; key != nil && count > 0; count-- {
		var r Record
		id := append([]byte(nil), key[:8]...)
		for ; key != nil && bytes.Equal(key[:8], id); key, b = cursor.Next() {
			if err := r.setField(string(key[8:]), b); err != nil {
				return err
			}
		}
		found(r)
	}
	return nil
}

func (multiKV) balances(bucket *bolt.Bucket, count int, found func(float64)) error {
	for id := range int64(count) {
		balance, err := balanceOf(bucket.Get(fieldKey(id, "balance")))
		if err != nil {
			return err
		}
		found(balance)
	}
	return nil
}

func (multiKV) setBalance(bucket *bolt.Bucket, id int64, balance float64) error {
	return bucket.Put(fieldKey(id, "balance"), balanceBytes(balance))
}

// nested stores each record in a nested bucket with one value per field.
type nested struct{}

func (nested) put(bucket *bolt.Bucket, r *Record) error {
	inner, err := bucket.CreateBucketIfNotExists(keyOf(r.ID))
	if err != nil {
		return err
	}
	for at, name := range names {
		if err := inner.Put([]byte(name), r.field(at)); err != nil {
			return err
		}
	}
	return nil
}

func (nested) get(bucket *bolt.Bucket, id int64) (r Record, err error) {
	inner := bucket.Bucket(keyOf(id))
	if inner == nil {
		return r, missing(id)
	}
	err = inner.ForEach(func(name, b []byte) error { return r.setField(string(name), b) })
	return r, err
}

func (s nested) each(bucket *bolt.Bucket, first int64, count int, found func(Record)) error {
	for id := first; id < first+int64(count); id++ {
		r, err := s.get(bucket, id)
		if err != nil {
			return err
		}
		found(r)
	}
	return nil
}

func (nested) balances(bucket *bolt.Bucket, count int, found func(float64)) error {
	for id := range int64(count) {
		inner := bucket.Bucket(keyOf(id))
		if inner == nil {
			return missing(id)
		}
		balance, err := balanceOf(inner.Get([]byte("balance")))
		if err != nil {
			return err
		}
		found(balance)
	}
	return nil
}

func (nested) setBalance(bucket *bolt.Bucket, id int64, balance float64) error {
	inner := bucket.Bucket(keyOf(id))
	if inner == nil {
		return missing(id)
	}
	return inner.Put([]byte("balance"), balanceBytes(balance))
}
