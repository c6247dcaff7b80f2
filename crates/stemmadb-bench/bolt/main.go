// Command bolt runs the record-encoding experiment on bbolt for one strategy and one insert mode. It reads
// length-prefixed records in the `binary` encoding from a file, and prints the time of each operation with checksums of
// what it read, so that the caller can compare them.
package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
)

// outcome is the printed result. Times are total nanoseconds over all operations of a kind.
type outcome struct {
	Insert      int64  `json:"insert"`
	Read        int64  `json:"read"`
	ReadMany    int64  `json:"read_many"`
	FieldSum    int64  `json:"field_sum"`
	Update      int64  `json:"update"`
	Bytes       int64  `json:"bytes"`
	ReadHash    uint64 `json:"read_hash"`
	ManyHash    uint64 `json:"many_hash"`
	SumBits     uint64 `json:"sum_bits"`
	UpdatedBits uint64 `json:"updated_bits"`
}

var bucketName = []byte("users")

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bolt:", err)
		os.Exit(1)
	}
}

func run() error {
	directory := flag.String("directory", "", "where the database is made")
	input := flag.String("records", "", "the file of records")
	reads := flag.String("ids", "", "the file of ids to read, then as many to update, 8 bytes each")
	strategy := flag.String("strategy", "binary", "binary, names, json, gob, multikv or nested")
	bulk := flag.Bool("bulk", false, "insert everything in one transaction")
	synced := flag.Bool("sync", false, "flush every transaction")
	flag.Parse()
	records, err := readRecords(*input)
	if err != nil {
		return err
	}
	ids, err := readIDs(*reads)
	if err != nil {
		return err
	}
	s, err := newStore(*strategy)
	if err != nil {
		return err
	}
	path := filepath.Join(*directory, "users.bolt")
	out, err := measure(path, s, records, ids, *bulk, *synced)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func readRecords(path string) ([]Record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var records []Record
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, errDamaged
		}
		end := 4 + int(binary.LittleEndian.Uint32(b))
		if len(b) < end {
			return nil, errDamaged
		}
		var r Record
		if err := r.readBinary(b[4:end]); err != nil {
			return nil, err
		}
		records, b = append(records, r), b[end:]
	}
	return records, nil
}

func readIDs(path string) ([]int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, 0, len(b)/8)
	for ; len(b) >= 8; b = b[8:] {
		ids = append(ids, int64(binary.LittleEndian.Uint64(b)))
	}
	return ids, nil
}

func measure(path string, s store, records []Record, ids []int64, bulk, synced bool) (out outcome, err error) {
	options := *bolt.DefaultOptions
	options.NoSync = !synced
	open := func() (*bolt.DB, error) { return bolt.Open(path, 0o600, &options) }
	db, err := open()
	if err != nil {
		return out, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket(bucketName)
		return err
	})
	if err != nil {
		return out, err
	}
	out.Insert, err = timed(func() error { return insert(db, s, records, bulk) })
	if err != nil {
		return out, err
	}
	if err := db.Close(); err != nil {
		return out, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return out, err
	}
	out.Bytes = info.Size()
	if db, err = open(); err != nil {
		return out, err
	}
	defer db.Close()
	toRead, toUpdate := ids[:len(ids)/2], ids[len(ids)/2:]
	found := make([]Record, len(toRead))
	out.Read, err = timed(func() error {
		for at, id := range toRead {
			err := db.View(func(tx *bolt.Tx) (err error) {
				found[at], err = s.get(tx.Bucket(bucketName), id)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	out.ReadHash = hashOf(found)
	first := int64(len(records) / 2)
	many := make([]Record, 0, len(records)/3)
	out.ReadMany, err = timed(func() error {
		return db.View(func(tx *bolt.Tx) error {
			return s.each(tx.Bucket(bucketName), first, len(records)/3, func(r Record) { many = append(many, r) })
		})
	})
	if err != nil {
		return out, err
	}
	out.ManyHash = hashOf(many)
	var sum float64
	out.FieldSum, err = timed(func() error { return sumOf(db, s, len(records), &sum) })
	if err != nil {
		return out, err
	}
	out.SumBits = math.Float64bits(sum)
	out.Update, err = timed(func() error {
		for at, id := range toUpdate {
			err := db.Update(func(tx *bolt.Tx) error { return s.setBalance(tx.Bucket(bucketName), id, float64(at)+0.5) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	sum = 0
	err = sumOf(db, s, len(records), &sum)
	out.UpdatedBits = math.Float64bits(sum)
	return out, err
}

func timed(work func() error) (int64, error) {
	start := time.Now()
	err := work()
	return time.Since(start).Nanoseconds(), err
}

func insert(db *bolt.DB, s store, records []Record, bulk bool) error {
	some := 1
	if bulk {
		some = len(records)
	}
	for start := 0; start < len(records); start += some {
		err := db.Update(func(tx *bolt.Tx) error {
			bucket := tx.Bucket(bucketName)
			for at := start; at < start+some; at++ {
				if err := s.put(bucket, &records[at]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func sumOf(db *bolt.DB, s store, count int, sum *float64) error {
	return db.View(func(tx *bolt.Tx) error {
		return s.balances(tx.Bucket(bucketName), count, func(balance float64) { *sum += balance })
	})
}

// hashOf returns the FNV-1a hash of the records in the `binary` encoding.
func hashOf(records []Record) uint64 {
	hash := fnv.New64a()
	var b []byte
	for at := range records {
		b = records[at].appendBinary(b[:0])
		hash.Write(b)
	}
	return hash.Sum64()
}
